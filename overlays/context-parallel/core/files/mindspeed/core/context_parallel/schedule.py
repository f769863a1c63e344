"""A schedule: at each step, who attends to which block of keys and values, and who sends it.

A schedule is plain data about a whole group. `circulate` runs it, `costs` counts it, the pictures
in the docs are drawn from it, and `check_schedule` says whether it is one. An algorithm is a
function that returns one.

A block is the keys and values (or a part of them) of one rank; queries stay at home. The messages
of step t are launched before its computation and have arrived when a later step needs them, so that
step t hides them. In the backward pass blocks take the same way, and each block's gradient follows
it: from every rank that has added its share to the next rank that attends to the block, in the end
to the owner, whose own share waits there. That is p - 1 messages a block, the least that a
reduction over p ranks can do with one copy in flight.
"""

from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Move:
    """One message: a block goes from rank to rank.

    Attributes:
        block: its number.
        src: rank that has it.
        dst: rank that gets it.
        lane: messages of different lanes may be in flight on different communicators.
    """

    block: int
    src: int
    dst: int
    lane: int = 0


@dataclass(frozen=True)
class Step:
    """What happens at once.

    Attributes:
        attends: for each rank, the blocks that its queries attend to.
        moves: launched before that computation.
    """

    attends: tuple[tuple[int, ...], ...]
    moves: tuple[Move, ...] = ()


@dataclass(frozen=True)
class Schedule:
    """All steps of a group.

    Attributes:
        owners: for each block, the rank that holds it at first.
        steps: in order.
    """

    owners: tuple[int, ...]
    steps: tuple[Step, ...]

    @property
    def num_ranks(self) -> int:
        """p."""
        return len(self.steps[0].attends)

    def blocks_of(self, rank: int) -> tuple[int, ...]:
        """The blocks that a rank owns."""
        return tuple(block for block, owner in enumerate(self.owners) if owner == rank)

    @cached_property
    def visits(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """For each block, (step, rank) of everyone who attends to it, in order."""
        found: list[list[tuple[int, int]]] = [[] for _ in self.owners]
        for number, step in enumerate(self.steps):
            for rank, blocks in enumerate(step.attends):
                for block in blocks:
                    found[block].append((number, rank))
        return tuple(map(tuple, found))

    @cached_property
    def gradient_moves(self) -> tuple[tuple[Move, ...], ...]:
        """For each step, the messages with gradients that follow its computation."""
        lanes = {(m.src, m.dst): m.lane for step in self.steps for m in step.moves}
        found: list[list[Move]] = [[] for _ in self.steps]
        for block, visits in enumerate(self.visits):
            away = [(step, rank) for step, rank in visits if rank != self.owners[block]]
            for index, (step, src) in enumerate(away):
                dst = away[index + 1][1] if index + 1 < len(away) else self.owners[block]
                lane = lanes.get((src, dst), src % 2)
                found[step].append(Move(block, src, dst, lane))
        return tuple(map(tuple, found))

    @cached_property
    def last_uses(self) -> dict[tuple[int, int], int]:
        """(rank, block): the last step in which the rank attends to the block or sends it."""
        found = {}
        for number, step in enumerate(self.steps):
            for rank, blocks in enumerate(step.attends):
                found.update({(rank, block): number for block in blocks})
            found.update({(move.src, move.block): number for move in step.moves})
        return found


def check_schedule(schedule: Schedule, *, complete: bool = True) -> None:
    """Make sure that a schedule computes attention.

    Args:
        schedule: of a group.
        complete: every rank must attend to every block; else it may leave blocks out.

    Raises:
        ValueError: a rank attends to a block that it does not hold, or not once to each; a rank
            sends what it does not hold; two ranks attend to one block at once (its gradient would
            have no way); an owner does not attend to its own blocks first.
    """
    held = [set(schedule.blocks_of(rank)) for rank in range(schedule.num_ranks)]
    for number, step in enumerate(schedule.steps):
        for move in step.moves:
            if move.block not in held[move.src]:
                raise ValueError(f"step {number}: rank {move.src} has no block {move.block}")
        for rank, blocks in enumerate(step.attends):
            if not held[rank].issuperset(blocks):
                raise ValueError(f"step {number}: rank {rank} has not got {blocks}")
        for move in step.moves:
            held[move.dst].add(move.block)
    for block, visits in enumerate(schedule.visits):
        ranks = sorted(rank for _, rank in visits)
        if len(set(ranks)) < len(ranks) or (complete and len(ranks) < schedule.num_ranks):
            raise ValueError(f"block {block}: not every rank attends to it exactly once")
        at_once = len({step for step, _ in visits}) < len(visits)
        if visits[0][1] != schedule.owners[block] or at_once:
            raise ValueError(f"block {block}: not owner first and then one rank at a time")
