"""The command line: `python -m ascend_sim run | doctor | ops | check-calls`."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ascend_sim.errors import SimulatorError
from ascend_sim.loader import Settings

SITE_FOLDER = Path(__file__).with_name("_site")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    parser = argparse.ArgumentParser(prog="ascend_sim", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run a program with the simulated device present")
    run.add_argument("--devices", type=int, default=8, help="number of devices (default 8)")
    run.add_argument("--soc", default="Ascend910B3", help="chip name (default Ascend910B3)")
    run.add_argument("--memory-gib", type=float, default=64, help="memory of a device (default 64)")
    run.add_argument("--poison", action="store_true", help="fill fresh device memory with NaN")
    run.add_argument("program", nargs=argparse.REMAINDER, metavar="-- CMD ...")
    commands.add_parser("doctor", help="check that the simulated device can work here")
    ops = commands.add_parser("ops", help="list the npu:: operators and their reference kernels")
    ops.add_argument("--json", action="store_true", help="print them for a machine")
    check = commands.add_parser("check-calls", help="bind torch_npu calls in sources to schemas")
    check.add_argument("folder", type=Path)
    check.add_argument("--version", default="2.13.0", help="a release, or a floor: '>=2.7.1'")
    check.add_argument("--json", action="store_true", help="print the findings for a machine")
    chosen = parser.parse_args(arguments)
    handlers: dict[str, Callable[[argparse.Namespace], int]] = {
        "run": run_program,
        "doctor": run_doctor,
        "ops": list_operators,
        "check-calls": check_calls,
    }
    try:
        return handlers[chosen.command](chosen)
    except SimulatorError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def make_environment(settings: Settings) -> dict[str, str]:
    """Return the environment in which every Python process finds the simulated device."""
    environment = dict(os.environ)
    tools = str(Path(__file__).parents[1])
    inherited = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    added = (
        [str(SITE_FOLDER)]
        if tools in sys.path[1:] and _is_installed(tools)
        else [str(SITE_FOLDER), tools]
    )
    environment["PYTHONPATH"] = os.pathsep.join([*added, *inherited])
    environment.update(settings.to_environment())
    environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "1"
    environment["TASK_QUEUE_ENABLE"] = "0"
    return environment


def _is_installed(folder: str) -> bool:
    return Path(folder).name in ("site-packages", "dist-packages")


def run_program(chosen: argparse.Namespace) -> int:
    """Replace this process by the program; Python children get the device too."""
    program = chosen.program[1:] if chosen.program[:1] == ["--"] else chosen.program
    if not program:
        raise SimulatorError("no program given; write `python -m ascend_sim run -- CMD ...`")
    settings = Settings(chosen.devices, chosen.soc, chosen.memory_gib, chosen.poison)
    from ascend_sim.stub import ensure_libraries

    ensure_libraries()  # once, here: not in every rank at the same time, and a failure shows now
    try:
        os.execvpe(program[0], program, make_environment(settings))
    except OSError as error:
        raise SimulatorError(f"{program[0]}: {error.strerror}") from error


def run_doctor(chosen: argparse.Namespace) -> int:
    """Print what the simulated device needs and whether it is there."""
    from ascend_sim.doctor import run_checks

    failed = False
    for check in run_checks():
        print(f"{'ok  ' if check.passed else 'FAIL'} {check.name}: {check.detail}")
        failed |= not check.passed
    return int(failed)


def list_operators(chosen: argparse.Namespace) -> int:
    """Print every npu:: operator, how it is served, and the document it follows."""
    from ascend_sim.ops import main as print_operators

    return print_operators(["--json"] if chosen.json else [])


def check_calls(chosen: argparse.Namespace) -> int:
    """Check the torch_npu calls of a source folder against the schemas."""
    from ascend_sim.contract.check_calls import main as check_folder

    as_json = ["--json"] if chosen.json else []
    return check_folder([*as_json, "--version", chosen.version, str(chosen.folder)])


if __name__ == "__main__":
    sys.exit(main())
