"""Which rows of the whole sequence each rank holds, and how to bring them into order.

Megatron cuts a sequence into 2p chunks and gives rank r the chunks r and 2p - 1 - r (zigzag), so
that under a causal mask every rank has the same work: chunk c attends to c + 1/2 chunks, and r +
1/2 + 2p - 1 - r + 1/2 = 2p for every r. Packed sequences are cut so one by one.

Dims: s rows of the whole sequence, p ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

import torch
from torch import Tensor

Range = tuple[int, int]
"""Rows [start, stop) of the whole sequence."""


@dataclass(frozen=True)
class Placement:
    """The rows of each rank, as ranges in the order in which the rank holds them.

    The ranks may be some of those that share the sequence: rows of others are then missing, and
    "global order" is the order of those that are here.
    """

    ranges: tuple[tuple[Range, ...], ...]

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Number of rows of each rank."""
        return tuple(sum(stop - start for start, stop in held) for held in self.ranges)

    @cached_property
    def pieces(self) -> tuple[tuple[int, int, int], ...]:
        """(rank, start, stop) of the rank's own rows, in global order."""
        found = []
        for rank, held in enumerate(self.ranges):
            own = 0
            for start, stop in held:
                found.append((start, rank, own, own + stop - start))
                own += stop - start
        return tuple((rank, start, stop) for _, rank, start, stop in sorted(found))

    @cached_property
    def rows(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """For each rank (row in global order, length) of its ranges, in its own order."""
        found: list[list[tuple[int, int, int]]] = [[] for _ in self.ranges]
        row = 0
        for rank, start, stop in self.pieces:
            found[rank].append((start, row, stop - start))
            row += stop - start
        return tuple(tuple((row, length) for _, row, length in sorted(held)) for held in found)

    @cached_property
    def ordered(self) -> bool:
        """Whether the ranks one after another are the global order already."""
        return [rank for rank, _, _ in self.pieces] == sorted(rank for rank, _, _ in self.pieces)


def place_zigzag(length: int, num_ranks: int) -> Placement:
    """Chunks r and 2p - 1 - r of 2p equal ones, as `get_batch_on_this_cp_rank` cuts a batch.

    Raises:
        ValueError: the length is not a multiple of 2p.
    """
    return place_packed_zigzag((0, length), num_ranks)


def place_packed_zigzag(starts: Sequence[int], num_ranks: int) -> Placement:
    """Every packed sequence cut into 2p chunks of its own; rank r holds two of each.

    Args:
        starts: cumulative lengths with a leading 0, as in `PackedSeqParams.cu_seqlens_q`.
        num_ranks: p.

    Raises:
        ValueError: a length is not a multiple of 2p.
    """
    num_chunks = 2 * num_ranks
    ranges: list[list[Range]] = [[] for _ in range(num_ranks)]
    for start, stop in pairwise(starts):
        chunk, rest = divmod(stop - start, num_chunks)
        if rest:
            raise ValueError(
                f"a sequence of {stop - start} rows cannot be cut into {num_chunks} equal chunks "
                f"for {num_ranks} context-parallel ranks"
            )
        for rank, held in enumerate(ranges):
            for index in (rank, num_chunks - 1 - rank):
                held.append((start + index * chunk, start + (index + 1) * chunk))
    return Placement(tuple(map(tuple, ranges)))


def place_contiguous(lengths: Sequence[int]) -> Placement:
    """Rank after rank, each with its own number of rows."""
    starts = [0, *accumulate(lengths)]
    return Placement(tuple(((start, stop),) for start, stop in pairwise(starts)))


def order_rows(parts: Sequence[Tensor], placement: Placement, *, axis: int = 0) -> Tensor:
    """Bring the rows of all ranks into global order.

    Args:
        parts: one tensor a rank, with that rank's rows along `axis`.
        placement: whose rows are where.
        axis: of the rows.

    Returns:
        One new tensor, written once.
    """
    if placement.ordered:
        return torch.cat(list(parts), axis)
    pieces = [
        parts[rank].narrow(axis, start, stop - start) for rank, start, stop in placement.pieces
    ]
    return torch.cat(pieces, axis)


def rank_rows(x: Tensor, placement: Placement, *, axis: int = 0) -> list[list[Tensor]]:
    """The inverse of `order_rows`: for each rank its rows, in pieces that are views."""
    return [[x.narrow(axis, row, length) for row, length in held] for held in placement.rows]


def count_causal_work(placement: Placement) -> list[int]:
    """Number of (query, key) pairs of each rank under a causal mask over the whole sequence."""
    return [
        sum((stop * (stop + 1) - start * (start + 1)) // 2 for start, stop in held)
        for held in placement.ranges
    ]
