"""One file under comparison: its lines, its symbols, its units, each read when first asked for."""

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from mindspeed_overlay.patch_model import split_lines
from mindspeed_overlay.port.units import Unit, parse_units
from mindspeed_overlay.syntax import MODULE, Module, parse_module


@dataclass(frozen=True, eq=False)
class Document:
    """A file's bytes; `python` tells whether they have symbols and units at all."""

    data: bytes
    python: bool = True

    @cached_property
    def lines(self) -> list[bytes]:
        """Lines with their ends."""
        return split_lines(self.data)

    @cached_property
    def module(self) -> Module:
        """Its structure; an empty one where it is not Python."""
        return parse_module(self.data if self.python else b"")

    @cached_property
    def _parsed(self) -> tuple[list[Unit], bool]:
        return parse_units(self.data if self.python else b"")

    @property
    def units(self) -> list[Unit]:
        """Its statements and headers in order."""
        return self._parsed[0]

    @property
    def is_broken(self) -> bool:
        """Whether the parser met a fault."""
        return self._parsed[1]

    @cached_property
    def _firsts(self) -> list[int]:
        return [unit.first for unit in self.units]

    @cached_property
    def offsets(self) -> list[int]:
        """The byte at which each line starts, and one more for the end."""
        return [0, *accumulate(map(len, self.lines))]

    def symbol_at(self, line: int) -> str:
        """The innermost symbol around a line, from 1."""
        return self.module.symbol_at(line) if self.python else MODULE

    def span_of(self, symbol: str) -> tuple[int, int] | None:
        """Line indices of a symbol, end excluded; of several definitions the hull."""
        if symbol == MODULE:
            return 0, len(self.lines)
        spans = self.module.spans_of(symbol)
        return (min(spans)[0] - 1, max(last for _, last in spans)) if spans else None

    def units_in(self, start: int, end: int) -> range:
        """Indices of the units that begin at or after line `start` and before `end`."""
        return range(bisect_left(self._firsts, start), bisect_left(self._firsts, end))

    def units_touching(self, start: int, end: int) -> range:
        """Indices of the units that own any line of `start:end`."""
        found = self.units_in(start, end)
        first = found.start
        if first and self.units[first - 1].end > start:
            first -= 1  # also lines added inside a statement change that statement
        return range(first, found.stop)

    def comments_above(self, unit: Unit) -> int:
        """The line at which the comments directly above a unit begin, else its own first line."""
        at = unit.first
        while at and self.lines[at - 1].lstrip().startswith(b"#"):
            at -= 1
        return at
