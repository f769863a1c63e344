"""Ulysses over ranks with unequal numbers of rows. An API: no option of Megatron's leads here.

Rank after rank the rows are the sequence. The all-to-all has parts of unequal length; heads are
shared out evenly, so work is balanced whatever the rows, also under a causal mask.

Dims: s rows of all ranks, l rows of this rank, b batch, n heads, g key heads, d and v widths.
"""

from collections.abc import Sequence

from mindspeed.core.context_parallel.block_kernel import Mask, NpuKernel
from mindspeed.core.context_parallel.exchange import ProcessGroup
from mindspeed.core.context_parallel.local import attend_locally
from mindspeed.core.context_parallel.online_softmax import SBND
from mindspeed.core.context_parallel.placement import place_contiguous
from mindspeed.core.context_parallel.ulysses import attend_by_heads
from torch import Tensor


def attend_uneven_ulysses(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    lengths: Sequence[int],
    group: ProcessGroup,
    scale: float,
    causal: bool = False,
    mask: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Attention of this rank's rows over those of all ranks. Differentiable.

    Args:
        q: [l, b, n, d].
        k: [l, b, g, d].
        v: [l, b, g, v].
        lengths: rows of each rank of the group, the same on all; none may be 0.
        group: all of its ranks must call.
        scale: of the scores.
        causal: whether later keys are hidden.
        mask: instead: bool, True where a key may not be seen: [1 or b, 1 or n / p, s, s].
        dropout: probability.

    Returns:
        [l, b, n, v].

    Raises:
        ValueError: lengths that do not fit the group or the tensors, heads that cannot be shared
            out, or two masks.
    """
    rank = group.rank()
    if len(lengths) != group.size() or min(lengths) < 1 or lengths[rank] != len(q):
        raise ValueError(
            f"lengths {list(lengths)} must be those of {group.size()} ranks, none 0, and rank "
            f"{rank} has {len(q)} rows"
        )
    if causal and mask is not None:
        raise ValueError("a mask and causal=True both say what is hidden: leave one out")
    kernel = NpuKernel(SBND, scale, 1.0 - dropout)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend_locally(q, k, v, kernel=kernel, mask=Mask(causal=causal, given=mask))

    placement = place_contiguous(lengths)
    return attend_by_heads(q, k, v, placement=placement, group=group, attend=attend)
