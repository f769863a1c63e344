"""Ring attention for sparse masks: only blocks that somebody may see travel, and only to those.

Which rank needs which block is a bipartite graph. A step in which every rank attends to at most one
block, and every block is at one rank, is a matching of it; the least number of steps is the largest
number of blocks that a rank needs, or of ranks that need a block (Koenig's theorem on edge
colouring). Since a block has one owner, its owner sends it each time: nobody sends or receives more
than one block at once, and nobody holds what he does not need.

Before that, rows may move to other ranks, so that the graph becomes sparser (`row_order`,
`move_rows`): one all-to-all there and one back, in each layer, and only where it saves rounds.

Dims: l rows of this rank, s rows of the ring, p ranks of the ring.
"""

import functools
from dataclasses import replace

import torch
from mindspeed.core.context_parallel.choice import Adapt, Choice
from mindspeed.core.context_parallel.exchange import ProcessGroup, find_device, gather_parts
from mindspeed.core.context_parallel.groups import Groups
from mindspeed.core.context_parallel.mask_blocks import read_mask_blocks
from mindspeed.core.context_parallel.masks import gather_rows, once
from mindspeed.core.context_parallel.move_rows import Route, move_mask, move_rows, plan_route
from mindspeed.core.context_parallel.placement import Placement, order_rows, place_contiguous
from mindspeed.core.context_parallel.problem import Problem, run_schedule
from mindspeed.core.context_parallel.ring import schedule_ring
from mindspeed.core.context_parallel.row_order import choose_order, size_unit
from mindspeed.core.context_parallel.schedule import Move, Schedule, Step
from mindspeed.core.context_parallel.ulysses import attend_by_heads
from torch import Tensor

Needs = tuple[tuple[bool, ...], ...]
"""For each rank, which blocks it needs."""


@functools.lru_cache(maxsize=32)
def schedule_needed(needs: Needs) -> Schedule:
    """The shortest schedule: every rank attends to its own block first, then to those it needs.

    Args:
        needs: of p ranks and their p blocks.
    """
    p = len(needs)
    edges = [(rank, block) for rank in range(p) for block in range(p) if needs[rank][block]]
    colours = colour_edges([edge for edge in edges if edge[0] != edge[1]], p)
    rounds: list[dict[int, int]] = [{rank: rank for rank in range(p)}]
    for (rank, block), colour in colours.items():
        while len(rounds) <= colour + 1:
            rounds.append({})
        rounds[colour + 1][rank] = block
    steps = []
    for index, held in enumerate(rounds):
        following = rounds[index + 1] if index + 1 < len(rounds) else {}
        moves = tuple(Move(b, b, r, lane=index % 2) for r, b in sorted(following.items()))
        attends = tuple((held[rank],) if rank in held else () for rank in range(p))
        steps.append(Step(attends, moves))
    return Schedule(tuple(range(p)), tuple(steps))


def colour_edges(edges: list[tuple[int, int]], size: int) -> dict[tuple[int, int], int]:
    """Colour the edges of a bipartite graph, no two at a node alike, with the fewest colours.

    Each edge takes the first colour free at its rank, if it is free at its block too. Otherwise the
    path of alternating colours that begins at the block is turned over, which frees it.

    Args:
        edges: (rank, block).
        size: number of ranks, and of blocks.
    """
    at_rank: list[dict[int, int]] = [{} for _ in range(size)]
    at_block: list[dict[int, int]] = [{} for _ in range(size)]
    for rank, block in edges:
        first = next(c for c in range(size) if c not in at_rank[rank])
        second = next(c for c in range(size) if c not in at_block[block])
        if first in at_block[block]:
            _turn_path(at_rank, at_block, block, first, second)
        at_rank[rank][first] = block
        at_block[block][first] = rank
    return {(r, b): colour for r, held in enumerate(at_rank) for colour, b in held.items()}


def _turn_path(
    at_rank: list[dict[int, int]],
    at_block: list[dict[int, int]],
    block: int,
    first: int,
    second: int,
) -> None:
    """Exchange two colours along the path that leaves `block` by `first`."""
    path = []
    node, by_block, colour = block, True, first
    while colour in (at_block if by_block else at_rank)[node]:
        other = (at_block if by_block else at_rank)[node][colour]
        path.append((other, node, colour) if by_block else (node, other, colour))
        node, by_block, colour = other, not by_block, second if colour == first else first
    for rank, held, colour in path:
        del at_rank[rank][colour], at_block[held][colour]
    for rank, held, colour in path:
        turned = second if colour == first else first
        at_rank[rank][turned], at_block[held][turned] = held, rank


def find_needs(rows: Tensor, placement: Placement, group: ProcessGroup) -> Needs:
    """Which ranks may see anything of which blocks; waits for the device once a mask.

    Args:
        rows: bool, True where hidden: [.., .., l, s], this rank's rows.
        placement: of all rows.
        group: the ring; all of its ranks must call.
    """

    def ask() -> Needs:
        seen = torch.stack(
            [
                torch.stack([~rows[..., a:b].all() for a, b in held]).any()
                for held in placement.ranges
            ]
        )
        grid = torch.stack(_gather(seen, group)).tolist()
        return tuple(tuple(bool(x) for x in row) for row in grid)

    needs: Needs = once(("needs", group), rows, ask)
    return needs


def _gather(seen: Tensor, group: ProcessGroup) -> list[Tensor]:
    """The flags of all ranks, on the CPU."""
    flags = seen.to(find_device(group), torch.uint8).view(-1)
    parts = gather_parts(flags, [flags.numel()] * group.size(), group)
    return [part.view(seen.shape).bool().cpu() for part in parts]


_first: dict[tuple[ProcessGroup, int], Route | None] = {}


def find_route(
    rows: Tensor, placement: Placement, group: ProcessGroup, adapt: Adapt
) -> Route | None:
    """How rows should move for a mask, None where they should stay.

    Args:
        rows: bool, True where hidden: [.., .., l, s], this rank's rows.
        placement: of all rows.
        group: the ring; all of its ranks must call.
        adapt: whether rows may move, and whether the order for the first mask holds for all.
    """
    if not adapt.move:
        return None

    def plan() -> Route | None:
        p, length = group.size(), rows.shape[-1]
        unit = size_unit(length, p, exact=adapt.move == "exact")
        seen = ~rows.flatten(0, 1).all(0)  # by any sample or head
        seen = seen.view(-1, unit, length // unit, unit).any(3).any(1)
        units = Placement(
            tuple(tuple((a // unit, b // unit) for a, b in held) for held in placement.ranges)
        )
        order = choose_order(order_rows(_gather(seen, group), units), p)
        if order is None:
            return None
        numbers = torch.tensor(order)[:, None] * unit + torch.arange(unit)
        return plan_route(numbers.flatten(), placement, group.rank(), find_device(group))

    if not adapt.order_once:
        route: Route | None = once(("route", group), rows, plan)
        return route
    key = (group, rows.shape[-1])
    if key not in _first:
        _first[key] = plan()
    return _first[key]


def attend_adaptive(
    q: Tensor, k: Tensor, v: Tensor, problem: Problem, *, choice: Choice, groups: Groups
) -> Tensor:
    """Over all ranks; see `attention.Attention`."""
    return _attend(q, k, v, problem, choice=choice, groups=groups)


def attend_hybrid_adaptive(
    q: Tensor, k: Tensor, v: Tensor, problem: Problem, *, choice: Choice, groups: Groups
) -> Tensor:
    """Ulysses over neighbours, adaptive over the rest; see `attention.Attention`."""
    assert groups.ulysses is not None
    ring = groups.whole.rank() // choice.ulysses
    first = ring * choice.ulysses
    placement = Placement(problem.place(choice.size).ranges[first : first + choice.ulysses])
    if problem.mask is not None:
        problem = problem.with_mask(gather_rows(problem.mask, placement, groups.ulysses))

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return _attend(q, k, v, problem, choice=choice, groups=groups)

    return attend_by_heads(q, k, v, placement=placement, group=groups.ulysses, attend=attend)


def _attend(
    q: Tensor, k: Tensor, v: Tensor, problem: Problem, *, choice: Choice, groups: Groups
) -> Tensor:
    """Over the ranks of a ring."""
    ring = groups.rings[0]
    placement, mask = problem.place(choice.ring), problem.mask
    schedule, route = schedule_ring(choice.ring), None
    if choice.adapt.own_blocks:
        blocks = read_mask_blocks(choice.ring)
        schedule = schedule_needed(blocks.needs)
        problem = replace(problem, tiles=blocks.tile(placement, ring.rank(), q.device))
    elif mask is not None:
        route = find_route(mask, placement, ring, choice.adapt)
        if route is not None:
            moved = once(("moved", ring), mask, lambda: move_mask(mask, route, ring))
            placement = place_contiguous(placement.lengths)
            problem = replace(problem, mask=moved, placement=placement)
            q, k, v = move_rows([q, k, v], route, ring)
        assert problem.mask is not None
        schedule = schedule_needed(find_needs(problem.mask, placement, ring))
    out = run_schedule(
        q,
        k,
        v,
        problem,
        schedule=schedule,
        rank=ring.rank(),
        lanes=groups.rings,
        fused_merge=choice.fused_merge,
        keep=choice.keep,
    )
    return out if route is None else move_rows([out], route.back(), ring)[0]
