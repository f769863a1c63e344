"""Merge the attention over two sets of keys into the attention over both.

With m the largest score of a row, l = sum exp(s - m) and out already divided by l:

    m = max(m1, m2)      a_i = l_i exp(m_i - m)      l = a_1 + a_2
    out = out_1 a_1 / l + out_2 a_2 / l

(Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Rabe and Staats,
"Self-attention does not need O(n^2) memory", 2021.)

The gradient of a block needs nothing more: with the m and l of the whole row the block's own
probabilities are p = exp(s - m) / l, and its share of the gradient is that of ordinary attention
with these p and with the merged output. So the blocks' gradients are simply added up (Liu, Zaharia
and Abbeel, "Ring Attention with Blockwise Transformers", 2023).

Dims: s rows, b batch, n heads, d value width, t packed rows.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

STATS_WIDTH = 8
"""The Ascend operators repeat each statistic so often."""

_HIGHEST = torch.finfo(torch.float32).max


@dataclass(frozen=True)
class Layout:
    """How queries, keys, values and outputs lie, and the statistics beside them.

    Attributes:
        name: of the operator's layout.
        axis: of the rows.
        stats_axis: of the rows in the statistics.
        heads: axis of the heads.
    """

    name: str
    axis: int
    stats_axis: int
    heads: int

    def spread(self, weight: Tensor) -> Tensor:
        """Statistics [b, n, s, 1] (packed: [t, n, 1]) as a view that multiplies an output."""
        return weight.permute(2, 0, 1, 3) if self.name == "SBH" else weight


SBND = Layout("SBH", axis=0, stats_axis=2, heads=2)
"""[s, b, n, d], as Megatron has it; the operator sees it as [s, b, n * d] without a copy."""
BNSD = Layout("BNSD", axis=2, stats_axis=2, heads=1)
TND = Layout("TND", axis=0, stats_axis=0, heads=1)
"""Packed: [t, n, d], statistics [t, n, .]."""


@dataclass
class Attended:
    """Attention of some rows over some keys.

    Attributes:
        out: in the layout of the queries, divided by `total`.
        top: float32 [b, n, s, w], packed [t, n, w], w being 1 or STATS_WIDTH: the largest score.
        total: likewise: sum of exp(score - top). A row that may see no key has out 0, the lowest
            float32 as top and the highest as total, which gives it no weight in a merge.
    """

    out: Tensor
    top: Tensor
    total: Tensor


def merge_(into: Attended, new: Attended, layout: Layout) -> None:
    """Merge `new` into `into`, in place, in float32.

    Args:
        into: the attention so far; float32 output.
        new: of the same rows over other keys; any float dtype.
        layout: of both.
    """
    width = into.top.shape[-1]
    new_top, new_total = new.top[..., :width], new.total[..., :width]
    top = torch.maximum(into.top, new_top)
    old_share = into.total * torch.exp(into.top - top)
    new_share = new_total * torch.exp(new_top - top)
    # Rows blank on both sides carry the highest float32 twice: their sum must stay finite.
    total = (old_share + new_share).clamp_(max=_HIGHEST)
    old_share.div_(total)
    new_share.div_(total)
    into.out.mul_(layout.spread(old_share[..., :1]))
    into.out.addcmul_(new.out.float(), layout.spread(new_share[..., :1]))
    into.top.copy_(top)
    into.total.copy_(total)
