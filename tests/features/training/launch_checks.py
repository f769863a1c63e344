"""What is asked of mindspeed.launch in a patched tree, without an NPU."""

import contextlib
import io
import os
import sys
from pathlib import Path
from typing import Any


def call_launch(arguments: list[str]) -> tuple[str, str]:
    """What `python -m mindspeed.launch ARGUMENTS` prints, and how it ends."""
    from mindspeed import launch

    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            launch.main(list(arguments))
    except SystemExit as end:
        return printed.getvalue(), str(end.code)
    return printed.getvalue(), ""


def run_script(folder: str) -> tuple[str, list[str], dict[str, str]]:
    """Run a script of the user's own that imports a module beside it and looks around."""
    beside = Path(folder)
    beside.joinpath("my_model.py").write_text("NAME = 'beside'\n", "utf-8")
    script = beside / "train_mine.py"
    script.write_text(
        "import json, os, sys\n"
        "import my_model\n"
        "assert __name__ == '__main__'\n"
        "keys = ('RANK', 'WORLD_SIZE', 'MASTER_ADDR', 'CUDA_DEVICE_MAX_CONNECTIONS')\n"
        "found = {key: os.environ.get(key) for key in keys}\n"
        "print(json.dumps([my_model.NAME, sys.argv[1:], found]))\n",
        "utf-8",
    )
    for key in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "CUDA_DEVICE_MAX_CONNECTIONS"):
        os.environ.pop(key, None)
    import json

    printed, end = call_launch([str(script), "--lr", "1"])
    assert end == "", end
    name, arguments, environment = json.loads(printed)
    return name, arguments, environment


def keep_launcher_environment() -> dict[str, str]:
    """The environment of a rank that a launcher started, after `set_environment`."""
    from mindspeed.launch import set_environment

    given = {"RANK": "3", "WORLD_SIZE": "8", "MASTER_PORT": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "4"}
    os.environ.update(given)
    set_environment()
    return {key: os.environ[key] for key in given}


def _find_no_properties(device: object) -> Any:
    return object()


def find_arch_version() -> object:
    """Whether the signal handler and the device architecture answer without CUDA's names."""
    import torch

    torch.cuda.get_device_properties = _find_no_properties  # type: ignore[assignment]
    from megatron.training import utils

    assert "megatron" in sys.modules
    return utils.get_device_arch_version()
