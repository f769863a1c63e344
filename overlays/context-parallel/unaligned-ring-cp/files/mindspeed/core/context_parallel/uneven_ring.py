"""Ring attention over ranks with unequal numbers of rows; an API, no option leads here.

Rank after rank the rows are the sequence; blocks of each rank's own length go round. Masks are full
or given, since a causal mask would leave the first ranks with little work (use the zigzag for
that).

Dims: s rows of all ranks, l rows of this rank, b batch, n heads, g key heads, d and v widths.
"""

from collections.abc import Sequence

from mindspeed.core.context_parallel.block_kernel import NpuKernel
from mindspeed.core.context_parallel.circulate import Circulation, circulate
from mindspeed.core.context_parallel.exchange import PointToPoint, ProcessGroup
from mindspeed.core.context_parallel.masks import read_rows
from mindspeed.core.context_parallel.online_softmax import SBND
from mindspeed.core.context_parallel.placement import place_contiguous
from mindspeed.core.context_parallel.ring import schedule_ring
from mindspeed.core.context_parallel.shard import DenseShard
from mindspeed.core.context_parallel.tiles import tile_full, tile_given
from torch import Tensor


def attend_uneven_ring(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    lengths: Sequence[int],
    group: ProcessGroup,
    scale: float,
    mask: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Attention of this rank's rows over those of all ranks. Differentiable.

    Args:
        q: [l, b, n, d]. k: [l, b, g, d]. v: [l, b, g, v]. lengths: rows of each rank of the group,
        the same on all; none may be 0. group: all of its ranks must call. scale: of the scores.
        mask: bool, True where a key may not be seen: [..., l, s] or [..., s, s]; None hides
        nothing. dropout: probability.

    Returns:
        [l, b, n, v].

    Raises:
        ValueError: lengths that do not fit the group or the tensors.
    """
    rank = group.rank()
    if len(lengths) != group.size() or min(lengths) < 1 or lengths[rank] != len(q):
        raise ValueError(
            f"lengths {list(lengths)} must be those of {group.size()} ranks, none 0, and rank "
            f"{rank} has {len(q)} rows"
        )
    placement = place_contiguous(lengths)
    blocks = [DenseShard(length) for length in lengths]
    if mask is None:
        tiles = tile_full(blocks[rank], blocks)
    else:
        tiles = tile_given(read_rows(mask, placement, rank), placement)
    plan = Circulation(
        schedule_ring(len(lengths)),
        rank,
        tiles,
        NpuKernel(SBND, scale, 1.0 - dropout),
        PointToPoint((group,)) if len(lengths) > 1 else None,
        blocks[rank],
        blocks,
    )
    return circulate(q, k, v, plan)
