"""Ulysses that keeps little: keys and values are exchanged again for the backward pass.

What a rank receives may be more than what it had: key heads are repeated until each rank has one.
So for the backward pass its own rows are kept, and traded again.

With one key head on every rank (`gather`), all rows of it are gathered instead: no repeats are
made, and as many bytes travel.

Dims: s rows of all ranks, l rows of this rank, b batch, n heads, g key heads, p ranks.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from mindspeed.core.context_parallel.block_kernel import BlockKernel, Mask
from mindspeed.core.context_parallel.exchange import (
    ProcessGroup,
    gather_parts,
    pack,
    reduce_parts,
    unpack,
)
from mindspeed.core.context_parallel.heads import trade_for_heads, trade_for_rows
from mindspeed.core.context_parallel.online_softmax import STATS_WIDTH, Attended
from mindspeed.core.context_parallel.placement import Placement, order_rows, rank_rows
from torch import Tensor

Trade = Callable[[Sequence[Tensor]], list[Tensor]]


def attend_again(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    kernel: BlockKernel,
    mask: Mask,
    there: Trade,
    back: Trade,
    keep: str,
) -> Tensor:
    """Attention of traded queries over keys and values that are traded here. Differentiable.

    Args:
        q: all rows of this rank's heads, rows first; the kernel's layout has rows first too.
        k: this rank's rows of all key heads.
        v: likewise.
        kernel: what computes.
        mask: between all rows.
        there: trades keys or values.
        back: trades their gradients.
        keep: "" keeps what was received, "half" receives keys again, "full" keys and values.

    Returns:
        All rows of this rank's heads.
    """
    out: Tensor = _Again.apply(q, k, v, kernel, mask, there, back, keep)
    return out


class _Again(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        kernel: BlockKernel,
        mask: Mask,
        there: Trade,
        back: Trade,
        keep: str,
    ) -> Tensor:
        keys, values = there([k, v])
        attended, ctx.draw = kernel.forward(q, keys, values, mask)
        ctx.kernel, ctx.mask, ctx.there, ctx.back, ctx.keep = kernel, mask, there, back, keep
        kept = {"": (keys, values), "half": (k, values), "full": (k, v)}[keep]
        stats = (attended.top[..., :1].contiguous(), attended.total[..., :1].contiguous())
        ctx.save_for_backward(q, *kept, attended.out, *stats)
        return attended.out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, keys, values, out, top, total = ctx.saved_tensors
        if ctx.keep == "half":
            (keys,) = ctx.there([keys])
        elif ctx.keep == "full":
            keys, values = ctx.there([keys, values])
        wide = (*top.shape[:-1], STATS_WIDTH)
        attended = Attended(out, top.expand(wide), total.expand(wide))
        dq, dk, dv = ctx.kernel.backward(grad, q, keys, values, attended, ctx.mask, ctx.draw)
        dk, dv = ctx.back([dk, dv])
        return dq, dk, dv, None, None, None, None, None


def trade_repeated(placement: Placement, group: ProcessGroup, repeats: int) -> tuple[Trade, Trade]:
    """Trade keys and values as Ulysses does, each head repeated first."""

    def there(tensors: Sequence[Tensor]) -> list[Tensor]:
        repeated = [x.repeat_interleave(repeats, -2) if repeats > 1 else x for x in tensors]
        return trade_for_heads(repeated, placement, group)

    def back(grads: Sequence[Tensor]) -> list[Tensor]:
        rows = trade_for_rows(grads, placement, group)
        if repeats == 1:
            return rows
        return [x.unflatten(-2, (-1, repeats)).sum(-2) for x in rows]

    return there, back


def trade_gathered(placement: Placement, group: ProcessGroup) -> tuple[Trade, Trade]:
    """Gather the rows of the only key head; sum gradients and share them out."""

    def there(tensors: Sequence[Tensor]) -> list[Tensor]:
        shapes = [[(rows, *x.shape[1:]) for x in tensors] for rows in placement.lengths]
        sizes = [sum(torch.Size(shape).numel() for shape in held) for held in shapes]
        flat = gather_parts(pack(tensors), sizes, group)
        by_rank = [unpack(part, held) for part, held in zip(flat, shapes, strict=True)]
        return [order_rows(parts, placement) for parts in zip(*by_rank, strict=True)]

    def back(grads: Sequence[Tensor]) -> list[Tensor]:
        ranked = [rank_rows(x.contiguous(), placement) for x in grads]
        shares = [[p for pieces in held for p in pieces] for held in zip(*ranked, strict=True)]
        own = placement.lengths[group.rank()]
        lengths = [rows * sum(x[0].numel() for x in grads) for rows in placement.lengths]
        shapes = [(own, *x.shape[1:]) for x in grads]
        return unpack(reduce_parts(shares, lengths, group), shapes)

    return there, back
