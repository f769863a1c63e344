"""Random numbers of the simulated device.

A device generator is torch_npu's own: a seed and an offset that every random operator advances,
kept per device and apart from the CPU's. Here one draw turns (seed, offset) into a CPU generator,
so that equal states give equal values and a state that is read and set again repeats them. The
values are not those of a real chip.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch_npu

_npu: Any = torch_npu.npu
_MASK = 2**64 - 1
_STEP = 4
"""Offsets advance in fours, as Philox blocks do."""


def draw(
    device: torch.device | int | None = None,
    generator: torch.Generator | None = None,
    *,
    count: int = _STEP,
) -> tuple[int, int]:
    """Take the next (seed, offset) of a generator and advance its offset.

    Args:
        device: the simulated device or its index; None means the current one, which in a reference
            kernel is the device of its arguments.
        generator: a device generator; None means the device's default one.
        count: how far to advance at least, rounded up to a multiple of four.
    """
    if generator is None:
        index = device.index if isinstance(device, torch.device) else device
        generator = _npu.default_generators[_npu.current_device() if index is None else index]
    seed, offset = generator.initial_seed(), generator.get_offset()
    generator.set_offset((offset + (count + _STEP - 1) // _STEP * _STEP) & _MASK)
    return seed, offset


def make_generator(seed: int, offset: int) -> torch.Generator:
    """Return the CPU generator that stands for (seed, offset)."""
    # splitmix64's finalizer: neighbouring offsets must not give neighbouring Mersenne seeds.
    mixed = (seed + (offset + 1) * 0x9E3779B97F4A7C15) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    generator = torch.Generator("cpu")
    generator.manual_seed(mixed ^ (mixed >> 31))
    return generator


def keep_mask(shape: Sequence[int], keep_prob: float, seed: int, offset: int) -> torch.Tensor:
    """Return the dropout mask of (seed, offset): CPU bool, True with probability `keep_prob`."""
    mask = torch._C._VariableFunctions.empty(tuple(shape), dtype=torch.bool, device="cpu")
    return mask.bernoulli_(keep_prob, generator=make_generator(seed, offset))


def take_generator(
    device: torch.device | int, generator: torch.Generator | None
) -> torch.Generator:
    """Return the CPU generator for one call of a random operator; a CPU generator is refused.

    Raises:
        RuntimeError: `generator` belongs to the CPU, as a device kernel would refuse it.
    """
    if generator is not None and generator.device.type == "cpu":
        raise RuntimeError("Expected a 'npu' device type for generator but found 'cpu'")
    return make_generator(*draw(device, generator))


@contextmanager
def borrow_default(device: torch.device | int) -> Iterator[None]:
    """Let CPU kernels without a generator argument draw from the device's generator."""
    default = torch.default_generator
    state = default.get_state()
    default.set_state(make_generator(*draw(device)).get_state())
    try:
        yield
    finally:
        default.set_state(state)
