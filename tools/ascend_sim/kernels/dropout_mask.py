"""What dropout operators share: bit masks, the probability as the device sees it, fresh seeds.

A bit mask holds eight elements a byte, padded to 128 elements. Element i is bit i % 8 of byte
i // 8; a set bit keeps its element. The padding bits are clear.
"""

import torch
from torch import Tensor

from ascend_sim import rng

_ALIGNMENT = 128


def pack_bits(keep: Tensor) -> Tensor:
    """Pack a bool tensor of any shape into uint8 [ceil(numel / 128) * 16]."""
    flat = keep.flatten()
    padded = flat.new_zeros(-(-flat.numel() // _ALIGNMENT) * _ALIGNMENT, dtype=torch.uint8)
    padded[: flat.numel()] = flat
    weights = padded.new_tensor([1 << bit for bit in range(8)])
    return (padded.view(-1, 8) * weights).sum(-1, dtype=torch.uint8)


def unpack_bits(mask: Tensor, numel: int) -> Tensor:
    """The first `numel` elements of a bit mask, bool."""
    shifts = torch.arange(8, dtype=torch.uint8, device="cpu")
    return (mask.flatten().unsqueeze(-1) >> shifts & 1).bool().flatten()[:numel]


def draw_seed() -> tuple[int, int]:
    """Take the next (seed, offset) of the current device's default generator."""
    return rng.draw()


def round_probability(probability: float) -> float:
    """Round to float32, in which the device takes it: 0.9 and 1 - (1 - 0.9) are then one value."""
    return float(torch.tensor(probability, dtype=torch.float32, device="cpu").item())
