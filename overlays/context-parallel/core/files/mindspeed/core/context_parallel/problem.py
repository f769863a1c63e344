"""One attention over the whole sequence, as an algorithm gets it on one rank.

Dims: s rows of the whole sequence, l rows of this rank, b batch, n heads.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from mindspeed.core.context_parallel.block_kernel import BlockKernel, Mask
from mindspeed.core.context_parallel.circulate import Circulation, circulate
from mindspeed.core.context_parallel.exchange import PointToPoint, ProcessGroup
from mindspeed.core.context_parallel.online_softmax import (
    BNSD,
    STATS_WIDTH,
    Attended,
    Layout,
    merge_,
)
from mindspeed.core.context_parallel.parts import load_part
from mindspeed.core.context_parallel.placement import Placement, place_packed_zigzag
from mindspeed.core.context_parallel.schedule import Schedule
from mindspeed.core.context_parallel.shard import DenseShard, PackedShard, Shard
from mindspeed.core.context_parallel.tiles import Tiler, tile_causal, tile_full, tile_given
from torch import Tensor

Kind = Literal["causal", "full", "given"]


@dataclass(frozen=True)
class Problem:
    """What is to be computed, without the tensors.

    Attributes:
        kernel: attention of a block; its layout is that of the computation.
        kind: "causal", "full" (both within each packed sequence) or "given".
        starts: cumulative lengths of the sequences with a leading 0; [0, s] if rows are not packed.
        packed: whether rows are packed: [l, n, d] instead of [l, b, n, d].
        mask: for "given": bool, True where a key may not be seen: [1 or b, 1 or n, l, s].
        placement: whose rows are where, if not as Megatron puts them.
        tiles: for "given", instead of a mask: the calls for a block.
    """

    kernel: BlockKernel
    kind: Kind
    starts: tuple[int, ...]
    packed: bool = False
    mask: Tensor | None = None
    placement: Placement | None = None
    tiles: Tiler | None = None

    @property
    def length(self) -> int:
        """s."""
        return self.starts[-1]

    @property
    def ends(self) -> tuple[int, ...] | None:
        """Ends of the packed sequences, without a leading 0."""
        return self.starts[1:] if self.packed else None

    def place(self, num_ranks: int) -> Placement:
        """Whose rows are where among p ranks."""
        return self.placement or place_zigzag_once(self.starts, num_ranks)

    def cut(self, num_ranks: int, device: torch.device) -> Shard:
        """The rows of one of p ranks."""
        if self.packed:
            return cut_packed_once(tuple(e // num_ranks for e in self.starts[1:]), device)
        return DenseShard(self.length // num_ranks)

    def with_mask(self, mask: Tensor | None) -> "Problem":
        """The same with another mask."""
        return replace(self, mask=mask)

    def whole_mask(self) -> Mask:
        """Between all rows, where they are on one rank."""
        if self.kind == "given":
            return Mask(given=self.mask)
        return Mask(causal=self.kind == "causal", query_ends=self.ends, key_ends=self.ends)


# Layers of a model share these: they are the same for every layer of a micro-batch.
place_zigzag_once = functools.lru_cache(maxsize=16)(place_packed_zigzag)
cut_packed_once = functools.lru_cache(maxsize=16)(PackedShard)


def run_schedule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    problem: Problem,
    *,
    schedule: Schedule,
    rank: int,
    lanes: Sequence[ProcessGroup],
    fused_merge: bool = False,
    keep: str = "",
) -> Tensor:
    """Attention by a schedule over the ranks of a ring. Differentiable.

    Args:
        q: [l, b, n, d], packed [l, n, d].
        k: this rank's keys.
        v: this rank's values.
        problem: among the ranks of the ring.
        schedule: of the ring.
        rank: this one, in the ring.
        lanes: see `PointToPoint`.
        fused_merge: merge parts by one operator.
        keep: see `Circulation`.

    Returns:
        [l, b, n, v], packed [l, n, v].
    """
    p = schedule.num_ranks
    rows = problem.cut(p, q.device)
    blocks = _cut_blocks(problem, schedule, rows)
    plan = Circulation(
        schedule,
        rank,
        _choose_tiles(problem, schedule, rank, rows, blocks, q.device),
        problem.kernel,
        PointToPoint(tuple(lanes)) if p > 1 else None,
        rows,
        blocks,
        merge=_choose_merge(fused_merge),
        stats_width=STATS_WIDTH if fused_merge else 1,
        keep=keep,
    )
    return in_layout(q, k, v, problem, lambda q, k, v: circulate(q, k, v, plan))


def _choose_merge(fused: bool) -> Callable[[Attended, Attended, Layout], None]:
    if not fused:
        return merge_
    merge: Callable[[Attended, Attended, Layout], None]
    merge = load_part("fused_merge", "merge_fused_", overlay="fused-ring-attention-update")
    return merge


def _cut_blocks(problem: Problem, schedule: Schedule, rows: Shard) -> list[Shard]:
    """The rows of each block: those of its owner, or an equal part of them."""
    parts = len(schedule.owners) // schedule.num_ranks
    if parts == 1:
        return [rows] * schedule.num_ranks
    if problem.packed or problem.kind != "full" or rows.length % parts:
        raise ValueError(
            f"a schedule with {parts} blocks a rank needs a full mask, rows that are not packed, "
            f"and a multiple of {parts} rows a rank: kind {problem.kind}, {rows.length} rows"
        )
    return [DenseShard(rows.length // parts)] * len(schedule.owners)


def _choose_tiles(
    problem: Problem,
    schedule: Schedule,
    rank: int,
    rows: Shard,
    blocks: Sequence[Shard],
    device: torch.device,
) -> Tiler:
    if problem.kind == "causal":
        return tile_causal(rank, schedule.owners, rows, blocks)
    if problem.kind == "full":
        return tile_full(rows, blocks)
    if problem.tiles is not None:
        return problem.tiles
    assert problem.mask is not None
    return tile_given(problem.mask, problem.place(schedule.num_ranks), device=device)


def in_layout(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    problem: Problem,
    attend: Callable[[Tensor, Tensor, Tensor], Tensor],
) -> Tensor:
    """Call `attend` with tensors in the kernel's layout; rows come first outside."""
    if problem.kernel.layout is not BNSD:
        return attend(q, k, v)
    turned = (x.permute(1, 2, 0, 3).contiguous() for x in (q, k, v))
    return attend(*turned).permute(2, 0, 1, 3)
