"""Which parts of a block a rank's queries may see, as calls of the kernel.

Under zigzag with a causal mask, of the four pairs of chunks between two ranks two are empty, and
the other two are whole:

    block from an earlier rank   all queries see its first chunk, none its last
    own block                    the triangle
    block from a later rank      the last queries see all of it, the first ones nothing

so half of the work is never computed, and no mask is made but the operator's own triangle.
(Brandon et al., "Striped Attention", 2023, balance the work by another order of rows; this one is
Megatron's.)
"""

from collections.abc import Callable, Sequence

import torch
from mindspeed.core.context_parallel.block_kernel import Mask
from mindspeed.core.context_parallel.circulate import Tile
from mindspeed.core.context_parallel.masks import once
from mindspeed.core.context_parallel.placement import Placement
from mindspeed.core.context_parallel.shard import Part, Shard
from torch import Tensor

Tiler = Callable[[int], Sequence[Tile]]
"""The calls for a block."""


def tile_causal(rank: int, owners: Sequence[int], queries: Shard, keys: Sequence[Shard]) -> Tiler:
    """Zigzag, causal (within each packed sequence).

    Args:
        rank: this one, among the ranks of the zigzag.
        owners: for each block, the rank whose rows it has.
        queries: this rank's rows.
        keys: each block's rows.
    """

    def tiles(block: int) -> Sequence[Tile]:
        owner = owners[block]
        if owner == rank:
            return [_tile(Part.ALL, Part.ALL, queries, keys[block], causal=True)]
        if owner < rank:
            return [_tile(Part.ALL, Part.FIRST, queries, keys[block])]
        return [_tile(Part.LAST, Part.ALL, queries, keys[block])]

    return tiles


def tile_full(queries: Shard, keys: Sequence[Shard]) -> Tiler:
    """Everyone sees everything (within each packed sequence)."""
    return lambda block: [_tile(Part.ALL, Part.ALL, queries, keys[block])]


def tile_given(mask: Tensor, placement: Placement, *, device: torch.device | None = None) -> Tiler:
    """A mask of any form. Each block's columns are cut once for all layers.

    Args:
        mask: bool, True where a key may not be seen: [1 or b, 1 or n, rows of this rank, all rows],
            keys in global order.
        placement: which of them are each block's.
        device: where the columns are wanted; None is where the mask is.
    """
    cut: dict[int, Tensor] = once("columns", mask, dict).setdefault((placement, device), {})

    def tiles(block: int) -> Sequence[Tile]:
        if block not in cut:
            columns = [mask[..., start:stop] for start, stop in placement.ranges[block]]
            cut[block] = torch.cat(columns, -1).to(device or mask.device)
        return [Tile(Part.ALL, Part.ALL, Mask(given=cut[block]))]

    return tiles


def _tile(
    queries: Part, keys: Part, query_rows: Shard, key_rows: Shard, *, causal: bool = False
) -> Tile:
    ends = (query_rows.ends_of(queries), key_rows.ends_of(keys))
    return Tile(queries, keys, Mask(causal=causal, query_ends=ends[0], key_ends=ends[1]))
