"""One comparison of context-parallel attention with dense attention: its inputs and its groups."""

import functools
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from features.context_parallel import dense

SCALE = 0.3


@dataclass(frozen=True)
class Case:
    """One comparison of an algorithm with dense attention."""

    algorithm: str
    mask: str = "causal"
    length: int = 32
    batch: int = 2
    heads: int = 8
    key_heads: int = 4
    width: int = 16
    value_width: int = 16
    starts: tuple[int, ...] = ()
    """Packed sequences: cumulative lengths with a leading 0; then batch is 1."""
    bnsd: bool = False
    dtype: torch.dtype = torch.float32
    lanes: int = 1
    fused_merge: bool = False
    keep: str = ""
    window: int = 1
    ulysses: int = 2
    npu: bool = False
    dropout: float = 0.0
    """On the device only."""
    uneven: tuple[int, ...] = ()
    """Rows of each rank, one after another, in place of the zigzag; masks are full or given."""
    cut_ring: bool = False
    """Rows of MindSpeed's hybrid: a zigzag over rings, each part cut among neighbours."""
    adapt: dict[str, Any] = field(default_factory=dict)
    """Of `choice.Adapt`, for the adaptive algorithms."""


def make_inputs(case: Case) -> tuple[list[Tensor], list[Tensor], Tensor, Tensor, list[Tensor]]:
    """This rank's leaves, as the algorithm wants them, the output's gradient, mask, all rows."""
    length, device = case.length, torch.device("npu" if case.npu else "cpu")
    generator = torch.Generator().manual_seed(5)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(case.dtype)

    whole = [
        draw(length, case.batch, heads, width)
        for heads, width in (
            (case.heads, case.width),
            (case.key_heads, case.width),
            (case.key_heads, case.value_width),
        )
    ]
    grad = draw(length, case.batch, case.heads, case.value_width)
    hidden = dense.hide(case.mask, length, list(case.starts or (0, length)))
    if case.mask == "given":
        hidden = torch.rand(case.batch, 1, length, length, generator=generator) > 0.6
        hidden[..., 0] = False
    rows = own_rows(case, dist.get_rank(), dist.get_world_size())
    own = [x[rows].to(device).requires_grad_() for x in whole]
    # Megatron has packed rows without a batch.
    given = [x.squeeze(1) for x in own] if case.starts else own
    return own, given, grad, hidden, whole


def own_rows(case: Case, rank: int, size: int) -> Tensor:
    """Chunks r and 2p - 1 - r of each sequence: written apart from `placement`."""
    parts = []
    if case.uneven:
        start = sum(case.uneven[:rank])
        return torch.arange(start, start + case.uneven[rank])
    if case.cut_ring:
        ring, place = divmod(rank, case.ulysses)
        chunks = torch.arange(case.length).chunk(2 * size // case.ulysses)
        return torch.cat([chunks[ring], chunks[-1 - ring]]).chunk(case.ulysses)[place]
    for start, stop in pairwise(case.starts or (0, case.length)):
        chunks = torch.arange(start, stop).chunk(2 * size)
        parts += [chunks[rank], chunks[2 * size - 1 - rank]]
    return torch.cat(parts)


@functools.cache
def make_groups(ranks: tuple[int, ...], count: int) -> tuple[dist.ProcessGroup, ...]:
    """`count` communicators of one set of ranks; every rank of the world must call."""
    return tuple(dist.new_group(list(ranks)) for _ in range(count))
