"""Attention of rows over keys that are all on this rank: one call of the kernel, differentiable.

Dims: s rows, b batch, n heads, g key heads, d width of queries and keys, v of values.
"""

from typing import Any

import torch
from mindspeed.core.context_parallel.block_kernel import BlockKernel, Mask
from mindspeed.core.context_parallel.online_softmax import STATS_WIDTH, Attended
from torch import Tensor


def attend_locally(q: Tensor, k: Tensor, v: Tensor, *, kernel: BlockKernel, mask: Mask) -> Tensor:
    """Attention by `kernel`.

    Args:
        q: in the kernel's layout, n heads.
        k: g heads.
        v: g heads, width v.
        kernel: what computes.
        mask: between q and k.

    Returns:
        The output, in the layout and dtype of q, with width v. For the backward pass q, k, v, the
        output and one column of each statistic are kept.
    """
    out: Tensor = _Local.apply(q, k, v, kernel, mask)
    return out


class _Local(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, kernel: BlockKernel, mask: Mask
    ) -> Tensor:
        attended, ctx.draw = kernel.forward(q, k, v, mask)
        ctx.kernel, ctx.mask = kernel, mask
        stats = (attended.top[..., :1].contiguous(), attended.total[..., :1].contiguous())
        ctx.save_for_backward(q, k, v, attended.out, *stats)
        return attended.out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, top, total = ctx.saved_tensors
        wide = (*top.shape[:-1], STATS_WIDTH)
        attended = Attended(out, top.expand(wide), total.expand(wide))
        grads = ctx.kernel.backward(grad, q, k, v, attended, ctx.mask, ctx.draw)
        return *grads, None, None
