"""Run a schedule: blocks of keys and values travel, queries stay at home.

Forward: as blocks arrive, each gives a part of the attention, and parts are merged
(online_softmax). Backward: blocks travel again (or were kept), each gives its part of dq, which
stays, and of dk and dv, which follow the block home (schedule).

Dims: s rows of this rank, b batch, n heads, g key heads, d width of queries and keys, v of values.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from mindspeed.core.context_parallel.block_kernel import BlockKernel, Draw, Mask
from mindspeed.core.context_parallel.exchange import PointToPoint, pack, unpack
from mindspeed.core.context_parallel.online_softmax import (
    STATS_WIDTH,
    Attended,
    Layout,
    merge_,
)
from mindspeed.core.context_parallel.schedule import Schedule
from mindspeed.core.context_parallel.shard import Part, Shard
from mindspeed.core.context_parallel.travel import Blocks, Gradients
from torch import Tensor


@dataclass(frozen=True)
class Tile:
    """One call of the kernel: some of this rank's queries over some rows of a block."""

    queries: Part
    keys: Part
    mask: Mask


@dataclass(frozen=True)
class Circulation:
    """What `circulate` needs beside the tensors.

    Attributes:
        schedule: of the group.
        rank: this one, in the group.
        tiles: the calls for a block, empty ones left out. Those of the first block that this rank
            attends to begin with one for ALL of its queries.
        kernel: attention of a tile.
        wires: the group's messages. None where nothing moves.
        queries: this rank's rows.
        keys: each block's rows.
        merge: merges the second part into the first, in place or into other tensors of it.
        stats_width: columns of the statistics that `merge` needs: 1 or STATS_WIDTH.
        keep: what stays of visiting blocks for the backward pass: "" nothing (they travel again),
            "half" the keys (the values travel again), "full" both (only gradients travel).
    """

    schedule: Schedule
    rank: int
    tiles: Callable[[int], Sequence[Tile]]
    kernel: BlockKernel
    wires: PointToPoint | None
    queries: Shard
    keys: Sequence[Shard]
    merge: Callable[[Attended, Attended, Layout], None] = merge_
    stats_width: int = 1
    keep: str = ""

    @property
    def own(self) -> tuple[int, ...]:
        """This rank's blocks."""
        return self.schedule.blocks_of(self.rank)

    def shapes(self, x: Tensor) -> list[tuple[int, ...]]:
        """The shape that `x`, this rank's keys or values, has in each block."""
        axis = self.kernel.layout.axis
        before, after = tuple(x.shape[:axis]), tuple(x.shape[axis + 1 :])
        return [(*before, shard.length, *after) for shard in self.keys]


def circulate(q: Tensor, k: Tensor, v: Tensor, plan: Circulation) -> Tensor:
    """Attention of this rank's queries over the keys of all ranks. Differentiable.

    Args:
        q: in the layout of `plan.kernel`: [s, b, n, d], [b, n, s, d] or packed [s, n, d].
        k: this rank's keys, with g heads.
        v: this rank's values, with g heads and width v.
        plan: what to do.

    Returns:
        The output, in the layout and dtype of q, with width v.
    """
    out: Tensor = _Circulate.apply(q, k, v, plan)
    return out


class _Circulate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, plan: Circulation) -> Tensor:
        own = _cut(plan, k, v)
        shapes = list(zip(plan.shapes(k), plan.shapes(v), strict=True))
        blocks = _Visitors(plan, own, shapes)
        attended, draws = _attend(plan, q, blocks)
        kept = blocks.keep()
        out = attended.out.to(q.dtype)
        stats = (attended.top[..., :1].contiguous(), attended.total[..., :1].contiguous())
        ctx.save_for_backward(q, out, *stats, *own.values(), *kept.values())
        ctx.plan, ctx.shapes, ctx.draws, ctx.kept = plan, shapes, draws, tuple(kept)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        plan: Circulation = ctx.plan
        q, out, top, total, *flat = ctx.saved_tensors
        own = dict(zip(plan.own, flat, strict=False))
        kept = dict(zip(ctx.kept, flat[len(own) :], strict=True))
        wide = (*top.shape[:-1], STATS_WIDTH)
        attended = Attended(out, top.expand(wide), total.expand(wide))
        blocks = _Visitors(plan, own, ctx.shapes, kept=kept)
        dq, grads = _attend_backward(plan, grad, q, attended, blocks, ctx.draws)
        dk, dv = _join(plan, grads, ctx.shapes)
        return dq.to(q.dtype), dk, dv, None


class _Visitors:
    """Blocks of keys and values as the kernel wants them: some travel, some were kept."""

    def __init__(
        self,
        plan: Circulation,
        own: Mapping[int, Tensor],
        shapes: Sequence[tuple[tuple[int, ...], tuple[int, ...]]],
        *,
        kept: Mapping[int, Tensor] | None = None,
    ) -> None:
        self._plan, self._own, self._shapes = plan, own, shapes
        self._kept: Mapping[int, Tensor] = kept or {}
        self._only_values = kept is not None and plan.keep == "half"
        self.sizes = [_numel(k) + _numel(v) for k, v in shapes]
        self._travel: Blocks | None = None
        if plan.wires is None or (kept is not None and plan.keep == "full"):
            return
        sizes = [_numel(v) for _, v in shapes] if self._only_values else self.sizes
        start = dict(own)
        if self._only_values:
            start = {b: self._halves(flat, b)[1].reshape(-1) for b, flat in own.items()}
        self._travel = Blocks(
            plan.schedule,
            plan.rank,
            plan.wires,
            start,
            sizes,
            keep_all=kept is None and plan.keep != "",
        )

    def launch(self, step: int) -> None:
        if self._travel is not None:
            self._travel.launch(step)

    def fetch(self, block: int) -> tuple[Tensor, Tensor]:
        """(keys, values) of a block, waited for."""
        if block in self._own or self._travel is None:
            k, v = self._halves({**self._kept, **self._own}[block], block)
        elif self._only_values:
            k = self._kept[block].view(self._shapes[block][0])
            v = self._travel.fetch(block).view(self._shapes[block][1])
        else:
            k, v = self._halves(self._travel.fetch(block), block)
        return k, v

    def release(self, step: int) -> None:
        if self._travel is not None:
            self._travel.release(step)

    def keep(self) -> dict[int, Tensor]:
        """What the plan wants of the visitors for the backward pass."""
        if self._travel is None or not self._plan.keep:
            return {}
        visitors = {b: flat for b, flat in self._travel.here.items() if b not in self._own}
        if self._plan.keep == "full":
            return visitors
        return {b: self._halves(flat, b)[0].reshape(-1).clone() for b, flat in visitors.items()}

    def _halves(self, flat: Tensor, block: int) -> tuple[Tensor, Tensor]:
        k, v = unpack(flat, self._shapes[block])
        return k, v


def _numel(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()


def _cut(plan: Circulation, k: Tensor, v: Tensor) -> dict[int, Tensor]:
    """This rank's keys and values as flat blocks, each element copied once."""
    axis, row, cut = plan.kernel.layout.axis, 0, {}
    for block in plan.own:
        length = plan.keys[block].length
        cut[block] = pack([k.narrow(axis, row, length), v.narrow(axis, row, length)])
        row += length
    return cut


def _join(
    plan: Circulation,
    grads: Mapping[int, Tensor],
    shapes: Sequence[tuple[tuple[int, ...], tuple[int, ...]]],
) -> tuple[Tensor, Tensor]:
    """dk and dv of this rank from those of its blocks."""
    pairs = [unpack(grads[block], shapes[block]) for block in plan.own]
    if len(pairs) == 1:
        return pairs[0][0], pairs[0][1]
    axis = plan.kernel.layout.axis
    return torch.cat([k for k, _ in pairs], axis), torch.cat([v for _, v in pairs], axis)


def _attend(
    plan: Circulation, q: Tensor, blocks: _Visitors
) -> tuple[Attended, dict[tuple[int, int], Draw]]:
    """The forward pass; also what repeats each call's dropout, by block and number of the tile."""
    layout, draws = plan.kernel.layout, {}
    so_far: Attended | None = None
    for number, step in enumerate(plan.schedule.steps):
        blocks.launch(number)
        for block in step.attends[plan.rank]:
            tiles = plan.tiles(block)
            k, v = blocks.fetch(block)
            for index, tile in enumerate(tiles):
                new, draws[block, index] = plan.kernel.forward(
                    plan.queries.take(q, tile.queries, layout.axis),
                    plan.keys[block].take(k, tile.keys, layout.axis),
                    plan.keys[block].take(v, tile.keys, layout.axis),
                    tile.mask,
                )
                if so_far is None:
                    so_far = _begin(new, tile, width=plan.stats_width)
                    continue
                if tile.queries is Part.ALL:
                    plan.merge(so_far, new, layout)
                    continue
                part = _part_of(so_far, plan.queries, tile.queries, layout)
                plan.merge(part, new, layout)
                plan.queries.put_(so_far.out, tile.queries, layout.axis, part.out)
                plan.queries.put_(so_far.top, tile.queries, layout.stats_axis, part.top)
                plan.queries.put_(so_far.total, tile.queries, layout.stats_axis, part.total)
        blocks.release(number)
    assert so_far is not None
    return so_far, draws


def _begin(first: Attended, tile: Tile, *, width: int) -> Attended:
    """What later parts are merged into: float32, and of the statistics no more than is needed."""
    assert tile.queries is Part.ALL
    top, total = first.top[..., :width].contiguous(), first.total[..., :width].contiguous()
    return Attended(first.out.float(), top, total)


def _part_of(whole: Attended, queries: Shard, part: Part, layout: Layout) -> Attended:
    return Attended(
        queries.take(whole.out, part, layout.axis),
        queries.take(whole.top, part, layout.stats_axis),
        queries.take(whole.total, part, layout.stats_axis),
    )


def _attend_backward(
    plan: Circulation,
    grad: Tensor,
    q: Tensor,
    attended: Attended,
    blocks: _Visitors,
    draws: Mapping[tuple[int, int], Draw],
) -> tuple[Tensor, dict[int, Tensor]]:
    """dq (float32) and the flat gradients of this rank's own blocks."""
    layout = plan.kernel.layout
    grads = Gradients(plan.schedule, plan.rank, plan.wires, blocks.sizes, like=q)
    dq: Tensor | None = None
    for number, step in enumerate(plan.schedule.steps):
        blocks.launch(number)
        for block in step.attends[plan.rank]:
            k, v = blocks.fetch(block)
            found = []
            for index, tile in enumerate(plan.tiles(block)):
                part = _part_of(attended, plan.queries, tile.queries, layout)
                dq_part, *dkv = plan.kernel.backward(
                    plan.queries.take(grad, tile.queries, layout.axis),
                    plan.queries.take(q, tile.queries, layout.axis),
                    plan.keys[block].take(k, tile.keys, layout.axis),
                    plan.keys[block].take(v, tile.keys, layout.axis),
                    part,
                    tile.mask,
                    draws[block, index],
                )
                if dq is None:
                    dq = dq_part.float()
                else:
                    plan.queries.add_(dq, tile.queries, layout.axis, dq_part)
                found.append((tile.keys, dkv))
            grads.add(block, found, like=(k, v), shard=plan.keys[block], axis=layout.axis)
        blocks.release(number)
        grads.launch(number)
    assert dq is not None
    return dq, grads.finish(plan.own)
