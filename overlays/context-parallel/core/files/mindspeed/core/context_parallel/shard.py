"""A rank's rows, whole or by halves.

Under zigzag each rank's rows are two chunks (of every packed sequence): FIRST is the earlier, LAST
the later. Dense rows give views; packed ones an index, for the first chunks of all sequences do not
lie side by side.

Dims: t rows of this rank, m packed sequences.
"""

import enum
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


class Part(enum.Enum):
    """Which of a rank's rows."""

    ALL = "all"
    FIRST = "first"
    LAST = "last"


@dataclass(frozen=True)
class DenseShard:
    """Rows of one sequence (of each sample of the batch)."""

    length: int

    def take(self, x: Tensor, part: Part, axis: int) -> Tensor:
        """The rows of a part, as a view."""
        if part is Part.ALL:
            return x
        half = self.length // 2
        return x.narrow(axis, 0 if part is Part.FIRST else half, half)

    def put_(self, x: Tensor, part: Part, axis: int, value: Tensor) -> None:
        """Write what became of what `take` gave; if it was changed in place, nothing is left."""
        view = self.take(x, part, axis)
        if value.data_ptr() != view.data_ptr():
            view.copy_(value)

    def add_(self, x: Tensor, part: Part, axis: int, value: Tensor) -> None:
        """Add `value` to the rows of a part."""
        self.take(x, part, axis).add_(value)

    def join(self, first: Tensor, last: Tensor, axis: int) -> Tensor:
        """All rows from those of both halves."""
        return torch.cat([first, last], axis)

    def ends_of(self, part: Part) -> None:
        """No packed sequences."""


@dataclass(frozen=True)
class PackedShard:
    """Rows of packed sequences, each with two chunks of equal length here.

    Attributes:
        ends: where each sequence ends among this rank's rows: cumulative, without a leading 0.
        device: where rows are indexed.
    """

    ends: tuple[int, ...]
    device: torch.device

    @property
    def length(self) -> int:
        """Number of rows."""
        return self.ends[-1]

    @cached_property
    def _rows(self) -> dict[Part, Tensor]:
        ends = torch.tensor(self.ends)
        starts = torch.cat([ends.new_zeros(1), ends[:-1]])
        middles = (starts + ends) // 2
        row = torch.arange(self.ends[-1])
        first = row < torch.repeat_interleave(middles, ends - starts)
        return {
            Part.FIRST: row[first].to(self.device),
            Part.LAST: row[~first].to(self.device),
        }

    def take(self, x: Tensor, part: Part, axis: int) -> Tensor:
        """The rows of a part; a copy unless it is all of them."""
        return x if part is Part.ALL else x.index_select(axis, self._rows[part])

    def put_(self, x: Tensor, part: Part, axis: int, value: Tensor) -> None:
        """Write back what became of what `take` gave."""
        if part is not Part.ALL:
            x.index_copy_(axis, self._rows[part], value)

    def add_(self, x: Tensor, part: Part, axis: int, value: Tensor) -> None:
        """Add `value` to the rows of a part."""
        if part is Part.ALL:
            x.add_(value)
        else:
            x.index_add_(axis, self._rows[part], value.to(x.dtype))

    def join(self, first: Tensor, last: Tensor, axis: int) -> Tensor:
        """All rows from those of both halves."""
        both = first.new_empty(*first.shape[:axis], self.length, *first.shape[axis + 1 :])
        both.index_copy_(axis, self._rows[Part.FIRST], first)
        return both.index_copy_(axis, self._rows[Part.LAST], last)

    def ends_of(self, part: Part) -> tuple[int, ...]:
        """The cumulative lengths of the sequences, of a part."""
        return self.ends if part is Part.ALL else tuple(end // 2 for end in self.ends)


Shard = DenseShard | PackedShard
