"""Run one of Megatron's training scripts by name, from any folder.

    python -m mindspeed.launch pretrain_gpt --num-layers 2 ...
    torchrun --nproc-per-node 8 -m mindspeed.launch pretrain_gpt --num-layers 2 ...
    python -m mindspeed.launch                      names the scripts of this build
    torchrun --nproc-per-node 8 $(python -m mindspeed.launch --where pretrain_gpt) ...

Builds with `--tree full` carry Megatron's scripts. A path to a script of one's own works as well,
and is run with the same checks: the Megatron that runs must be the patched one, and the device is
ready before the script imports anything.
"""

import os
import runpy
import socket
import sys
from pathlib import Path

SCRIPTS = Path(__file__).with_name("scripts")


def find_scripts() -> dict[str, Path]:
    """The training scripts of this build, by name."""
    found = sorted(SCRIPTS.glob("*.py"))
    return {path.stem: path for path in found if path.stem.startswith(("pretrain_", "train_"))}


def find_script(name: str) -> Path:
    """The script of that name, or at that path.

    Raises:
        SystemExit: there is none; says which there are.
    """
    scripts = find_scripts()
    known = scripts.get(name.removesuffix(".py"))
    path = Path(name)
    if known is not None and not path.is_file():
        return known
    if path.suffix == ".py" and path.is_file():
        return path
    if scripts:
        raise SystemExit(f"no training script {name!r}; this build has {', '.join(scripts)}")
    raise SystemExit(
        f"no training script {name!r}: this build carries none, since PyPI's megatron-core has "
        "none. Build with `--tree full --source git`, or give the path of your own script"
    )


def set_environment(environment: "os._Environ[str]" = os.environ) -> None:
    """Fill in what a launcher sets, for one rank without a launcher; keep all that is set.

    CUDA_DEVICE_MAX_CONNECTIONS means nothing to NPUs, but Megatron asserts it for tensor and
    context parallelism.
    """
    environment.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    if "WORLD_SIZE" in environment:
        return
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = str(listener.getsockname()[1])
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    for key, value in (alone | {"MASTER_PORT": port}).items():
        environment.setdefault(key, value)


def main(arguments: list[str]) -> None:
    """Run the script that `arguments` start with; its own arguments follow."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__)
        print("\n".join(find_scripts()) or "This build carries no scripts.")
        return
    if arguments[0] == "--where":
        print(find_script("".join(arguments[1:2])))
        return
    from mindspeed.core.device import prepare_device
    from mindspeed.core.origin import check_origin

    script = find_script(arguments[0])
    set_environment()
    check_origin()
    prepare_device()
    # As `python script.py` has it: the script's folder first, for the modules beside it.
    sys.path.insert(0, str(script.resolve().parent))
    sys.argv = [str(script), *arguments[1:]]
    runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
