"""Validate configs with 200 options: everything off, 20 of them on, and one module of a model.

    python benchmarks/options.py

No Megatron is needed: the code of base/options runs on a small config class with a table of this
many options. Best of several runs, in microseconds; the limit is 50 for one validation. The cost of
building a config is the same dataclass with and without options.
"""

import dataclasses
import sys
import tempfile
import time
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mindspeed_overlay.data import default_overlays
from mindspeed_overlay.generate import TABLE_PATH, generate_files
from mindspeed_overlay.option import Option
from mindspeed_overlay.overlay import OPTIONS_OVERLAY, Overlay

NUM_OPTIONS = 200
NUM_ON = 20
LIMIT_US = 50
CALLS, ROUNDS = 2_000, 7
TAG = "core_v0.16.1"


def write_package(folder: Path) -> None:
    """`mindspeed` of base/ascend and base/options with a table of many options."""
    for overlay in ("base/ascend", OPTIONS_OVERLAY):
        root = default_overlays() / overlay / "files"
        for path in root.rglob("*.py"):
            target = folder / path.relative_to(root)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    options = tuple(make_option(number) for number in range(NUM_OPTIONS))
    many = Overlay(
        id=OPTIONS_OVERLAY, summary="many options", level=0, folder=folder, options=options
    )
    table = generate_files([many], known=[many], tag=TAG, order=(TAG,))[TABLE_PATH]
    (folder / TABLE_PATH).write_bytes(table)


def make_option(number: int) -> Option:
    """Every other one an int with choices and a condition, the rest bools."""
    known: dict[str, Any] = {"flag": f"--option-{number}", "field": f"option_{number}", "help": ""}
    known |= {"config": "TransformerConfig"}
    if number % 2:
        return Option(type="bool", default=False, conflicts=("bias",), **known)
    return Option(type="int", choices=(1, 2, 3), requires=("num_layers!=0",), **known)


def measure(call: Callable[[], Any]) -> float:
    """Microseconds of one call, the best of several runs."""
    runs = timeit.repeat(call, number=CALLS, repeat=ROUNDS, timer=time.process_time)
    return min(runs) / CALLS * 1e6


def main() -> int:
    """Print the table; 1 when a validation is over the limit."""
    with tempfile.TemporaryDirectory() as name:
        write_package(Path(name))
        sys.path.insert(0, name)
        from mindspeed.core.options import add_options, confirm_options
        from mindspeed.core.options.rules import validate

    def make_class(decorate: Callable[[type], type]) -> Any:
        fields = {"num_layers": 2, "bias": False}
        body = {**fields, "__annotations__": {"num_layers": int, "bias": bool}}
        return dataclasses.dataclass(decorate(type("TransformerConfig", (), body)))

    plain, ours = make_class(lambda kind: kind), make_class(add_options)
    on = {f"option_{n}": True if n % 2 else 2 for n in range(0, NUM_OPTIONS, NUM_OPTIONS // NUM_ON)}
    off_config, on_config = ours(), ours(**on)
    confirm_options(off_config)
    validations = {
        "validate, all off": measure(lambda: validate(off_config)),
        f"validate, {len(on)} on": measure(lambda: validate(on_config)),
        "one module of a model, all off": measure(lambda: confirm_options(off_config)),
    }
    for label, microseconds in validations.items():
        print(f"{label:<32} {microseconds:7.1f} us  (limit {LIMIT_US})")
    building = {"build a config without options": plain, f"with {NUM_OPTIONS} options": ours}
    for label, kind in building.items():
        print(f"{label:<32} {measure(kind):7.1f} us")
    return int(max(validations.values()) > LIMIT_US)


if __name__ == "__main__":
    sys.exit(main())
