"""Trade rows for heads (all-to-all), differentiably: the exchange of Ulysses.

Before, a rank has its rows of every head; after, all rows of its share of the heads. One collective
carries queries, keys and values together.

(Jacobs et al., "DeepSpeed Ulysses", 2023.)

Dims: s rows of the group, l rows of this rank, b batch, n heads, d width, p ranks.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from mindspeed.core.context_parallel.exchange import ProcessGroup, exchange_parts
from mindspeed.core.context_parallel.placement import Placement, order_rows, rank_rows
from torch import Tensor


def scatter_heads(
    tensors: Sequence[Tensor], placement: Placement, group: ProcessGroup
) -> tuple[Tensor, ...]:
    """From this rank's rows of all heads to all rows of this rank's heads.

    Args:
        tensors: each [l, ..., n, d] with its own n and d, n a multiple of p; rows first.
        placement: of the group's rows.
        group: all of its ranks must call.

    Returns:
        Each [s, ..., n / p, d], contiguous, rows in global order. A rank sends (p - 1) / p of its
        elements.
    """
    found: tuple[Tensor, ...] = _ScatterHeads.apply(placement, group, *tensors)
    return found


def gather_heads(x: Tensor, placement: Placement, group: ProcessGroup) -> Tensor:
    """The inverse, for one tensor: from [s, ..., n / p, d] to [l, ..., n, d]."""
    found: Tensor = _GatherHeads.apply(placement, group, x)
    return found


class _ScatterHeads(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, placement: Placement, group: ProcessGroup, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.placement, ctx.group = placement, group
        return tuple(trade_for_heads(tensors, placement, group))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *trade_for_rows(grads, ctx.placement, ctx.group)


class _GatherHeads(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, placement: Placement, group: ProcessGroup, x: Tensor) -> Tensor:
        ctx.placement, ctx.group = placement, group
        return trade_for_rows([x], placement, group)[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, trade_for_heads([grad], ctx.placement, ctx.group)[0]


def trade_for_heads(
    tensors: Sequence[Tensor], placement: Placement, group: ProcessGroup
) -> list[Tensor]:
    """`scatter_heads` without a gradient."""
    p, lengths = group.size(), placement.lengths
    shapes = [(*x.shape[1:-2], x.shape[-2] // p, x.shape[-1]) for x in tensors]
    widths = [math.prod(shape) for shape in shapes]
    own = tensors[0].shape[0]
    source = tensors[0].new_empty(p, own * sum(widths))
    column = 0
    for x, shape, width in zip(tensors, shapes, widths, strict=True):
        # [l, ..., n, d] as [p, l, ..., n / p, d]
        by_rank = x.unflatten(-2, (p, shape[-2])).movedim(-3, 0)
        source[:, column : column + own * width].view(by_rank.shape).copy_(by_rank)
        column += own * width
    counts = [rows * sum(widths) for rows in lengths]
    received = exchange_parts(source, [source[0].numel()] * p, counts, group).split(counts)
    found, before = [], 0
    for shape, width in zip(shapes, widths, strict=True):
        flat = [
            part.narrow(0, before * n, width * n) for part, n in zip(received, lengths, strict=True)
        ]
        parts = [part.view(n, *shape) for part, n in zip(flat, lengths, strict=True)]
        found.append(order_rows(parts, placement))
        before += width
    return found


def trade_for_rows(
    tensors: Sequence[Tensor], placement: Placement, group: ProcessGroup
) -> list[Tensor]:
    """`gather_heads` without a gradient, for several tensors."""
    p, own = group.size(), placement.lengths[group.rank()]
    widths = [x[0].numel() for x in tensors]
    source = _pack_by_rank(tensors, placement)
    sent = [rows * sum(widths) for rows in placement.lengths]
    received = exchange_parts(source, sent, [own * sum(widths)] * p, group).view(p, -1)
    found, column = [], 0
    for x, width in zip(tensors, widths, strict=True):
        by_rank = received.narrow(1, column, own * width).view(p, own, *x.shape[1:])
        column += own * width
        # [p, l, ..., n / p, d] as [l, ..., n, d]
        found.append(by_rank.movedim(0, -3).flatten(-3, -2))
    return found


def _pack_by_rank(tensors: Sequence[Tensor], placement: Placement) -> Tensor:
    """For each rank its rows of one tensor after the other, as one flat tensor, written once."""
    ranked = [rank_rows(x.contiguous(), placement) for x in tensors]
    by_rank = [pieces for rank in zip(*ranked, strict=True) for pieces in rank]
    return torch.cat([piece.view(-1) for pieces in by_rank for piece in pieces])
