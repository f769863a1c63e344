"""Ring attention for sparse masks: only blocks that somebody may see travel, and only to those.

Which rank needs which block is a bipartite graph. A step in which every rank attends to at most one
block, and every block is at one rank, is a matching of it; the least number of steps is the largest
number of blocks that a rank needs, or of ranks that need a block (Koenig's theorem on edge
colouring). Since a block has one owner, its owner sends it each time: nobody sends or receives more
than one block at once, and nobody holds what he does not need.

The rows stay where Megatron has put them. MindSpeed's adaptive algorithm also moves rows between
ranks beforehand, so that the graph becomes sparser (ask it not to with
--adaptive-cp-only-reschedule); that is not done here.

Dims: l rows of this rank, s rows of the ring, p ranks of the ring.
"""

import functools

import torch
import torch.distributed as dist
from mindspeed.core.context_parallel.choice import Choice
from mindspeed.core.context_parallel.exchange import ProcessGroup
from mindspeed.core.context_parallel.groups import Groups
from mindspeed.core.context_parallel.masks import gather_rows, once
from mindspeed.core.context_parallel.placement import Placement
from mindspeed.core.context_parallel.problem import Problem, run_schedule
from mindspeed.core.context_parallel.ring import schedule_ring
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
        everyone = torch.empty(group.size() * len(seen), dtype=torch.int32, device=rows.device)
        dist.all_gather_into_tensor(everyone, seen.int(), group=group)
        grid = everyone.view(group.size(), -1).tolist()
        return tuple(tuple(bool(x) for x in row) for row in grid)

    needs: Needs = once(("needs", group), rows, ask)
    return needs


def attend_adaptive(
    q: Tensor, k: Tensor, v: Tensor, problem: Problem, *, choice: Choice, groups: Groups
) -> Tensor:
    """Over all ranks; see `attention.Attention`."""
    return _attend(q, k, v, problem, rank=groups.whole.rank(), choice=choice, groups=groups)


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
        return _attend(q, k, v, problem, rank=ring, choice=choice, groups=groups)

    return attend_by_heads(q, k, v, placement=placement, group=groups.ulysses, attend=attend)


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    problem: Problem,
    *,
    rank: int,
    choice: Choice,
    groups: Groups,
) -> Tensor:
    schedule = schedule_ring(choice.ring)
    if problem.mask is not None:
        placement = problem.place(choice.ring)
        schedule = schedule_needed(find_needs(problem.mask, placement, groups.rings[0]))
    return run_schedule(
        q,
        k,
        v,
        problem,
        schedule=schedule,
        rank=rank,
        lanes=groups.rings,
        fused_merge=choice.fused_merge,
        keep=choice.keep,
    )
