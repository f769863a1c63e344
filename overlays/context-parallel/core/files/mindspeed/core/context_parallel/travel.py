"""Flat tensors that travel by the moves of a schedule: who is here, who is on the way.

Buffers of blocks that nobody needs any more are received into again.
"""

from collections.abc import Collection, Mapping, Sequence

from mindspeed.core.context_parallel.exchange import Flight, PointToPoint, pack, unpack
from mindspeed.core.context_parallel.schedule import Move, Schedule
from mindspeed.core.context_parallel.shard import Part, Shard
from torch import Tensor


def _take_buffer(free: list[Tensor], size: int, like: Tensor) -> Tensor:
    """One of the free buffers that has the size, or a new one."""
    for index, buffer in enumerate(free):
        if buffer.numel() == size:
            return free.pop(index)
    return like.new_empty(size)


class Blocks:
    """The blocks on one rank while a schedule runs."""

    def __init__(
        self,
        schedule: Schedule,
        rank: int,
        wires: PointToPoint,
        own: Mapping[int, Tensor],
        sizes: Sequence[int],
        *,
        keep_all: bool = False,
    ) -> None:
        """Begin with this rank's own blocks.

        Args:
            schedule: whose moves will be launched.
            rank: this one, in the group.
            wires: carries messages.
            own: flat tensors of this rank's blocks; they stay as they are.
            sizes: elements of every block.
            keep_all: never let a block go.
        """
        self.here: dict[int, Tensor] = dict(own)
        self._own = frozenset(own)
        self._schedule, self._rank, self._wires, self._sizes = schedule, rank, wires, sizes
        self._arriving: dict[int, Flight] = {}
        self._leaving: list[tuple[int, Flight]] = []
        self._free: list[Tensor] = []
        self._keep_all = keep_all
        self._like = next(iter(own.values()))

    def launch(self, step: int) -> None:
        """Launch a step's moves."""
        launched = self._wires.launch(
            self._schedule.steps[step].moves,
            outgoing=lambda move: self.fetch(move.block),
            incoming=self._make_room,
        )
        for move, flight in launched:
            if move.dst == self._rank:
                self._arriving[move.block] = flight
            else:
                self._leaving.append((move.block, flight))

    def fetch(self, block: int) -> Tensor:
        """A block that is here or on its way; waits for it."""
        flight = self._arriving.pop(block, None)
        if flight is not None:
            flight.wait()
        return self.here[block]

    def release(self, step: int) -> None:
        """After a step's computation: let go what no later step needs."""
        last_uses = self._schedule.last_uses
        done = {b for b in self.here if last_uses.get((self._rank, b), step) <= step}
        done -= self._arriving.keys()
        for block, flight in self._leaving:
            if block in done:
                flight.wait()
        self._leaving = [(block, flight) for block, flight in self._leaving if block not in done]
        if not self._keep_all:
            for block in done - self._own:
                self._free.append(self.here.pop(block))

    def _make_room(self, move: Move) -> Tensor:
        buffer = _take_buffer(self._free, self._sizes[move.block], self._like)
        self.here[move.block] = buffer
        return buffer


class Gradients:
    """Gradients of blocks on their way home; each rank on the way adds its share."""

    def __init__(
        self,
        schedule: Schedule,
        rank: int,
        wires: PointToPoint | None,
        sizes: Sequence[int],
        *,
        like: Tensor,
    ) -> None:
        """Begin with nothing; `sizes` are the elements of each block, `like` gives their dtype."""
        self._schedule, self._rank, self._wires = schedule, rank, wires
        self._sizes, self._like = sizes, like
        self._here: dict[int, Tensor] = {}
        self._arriving: dict[int, tuple[Tensor, Flight]] = {}
        self._leaving: list[tuple[Tensor, Flight]] = []
        self._free: list[Tensor] = []

    def add(
        self,
        block: int,
        found: Sequence[tuple[Part, Sequence[Tensor]]],
        *,
        like: Sequence[Tensor],
        shard: Shard,
        axis: int,
    ) -> None:
        """Add this rank's share of a block's gradient to what has come from the ranks before.

        Args:
            block: its number.
            found: (rows, [dk, dv]) of each tile.
            like: the block's keys and values, for their shapes.
            shard: the block's rows.
            axis: of the rows.
        """
        flat = self._collect(block)
        if flat is None and len(found) == 1 and found[0][0] is Part.ALL:
            self._here[block] = pack(found[0][1])
            return
        if flat is None:
            flat = like[0].new_zeros(sum(x.numel() for x in like))
        targets = unpack(flat, [x.shape for x in like])
        for part, shares in found:
            for target, share in zip(targets, shares, strict=True):
                shard.add_(target, part, axis, share)
        self._here[block] = flat

    def launch(self, step: int) -> None:
        """Send on what this rank has added in a step, and receive what a later one adds to."""
        moves = self._schedule.gradient_moves[step]
        if self._wires is None or not moves:
            return
        for buffer, flight in self._leaving:
            flight.wait()
            self._free.append(buffer)
        sent = {m.block: self._here.pop(m.block) for m in moves if m.src == self._rank}
        incoming: dict[int, Tensor] = {}

        def make_room(move: Move) -> Tensor:
            incoming[move.block] = _take_buffer(self._free, self._sizes[move.block], self._like)
            return incoming[move.block]

        launched = self._wires.launch(
            moves, outgoing=lambda move: sent[move.block], incoming=make_room
        )
        self._leaving = [(sent[m.block], flight) for m, flight in launched if m.src == self._rank]
        for move, flight in launched:
            if move.dst == self._rank:
                self._arriving[move.block] = (incoming[move.block], flight)

    def finish(self, own: Collection[int]) -> dict[int, Tensor]:
        """Wait for everything; the gradients of this rank's own blocks."""
        for block in own:
            arrived = self._collect(block)
            if arrived is not None:
                self._here[block].add_(arrived)
        for _, flight in self._leaving:
            flight.wait()
        self._leaving = []
        return {block: self._here[block] for block in own}

    def _collect(self, block: int) -> Tensor | None:
        found = self._arriving.pop(block, None)
        if found is None:
            return None
        found[1].wait()
        return found[0]
