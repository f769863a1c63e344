"""The values of a patch: one target file, and hunks of exact lines.

A line is everything up to and including a line feed, so a carriage return before it is part of the
line. The last line of a file may lack the line feed; a hunk line that lacks it stands for the
`\\ No newline at end of file` marker.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

MODULE_SYMBOL = "<module>"
"""The symbol of lines that stand in no function and no class."""


def split_lines(data: bytes) -> list[bytes]:
    """The lines of `data`, split after line feeds only; joined they give `data` back."""
    if b"\r" not in data:
        return data.splitlines(keepends=True)
    lines = [line + b"\n" for line in data.split(b"\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def find_common_symbol(symbols: Iterable[str]) -> str:
    """The innermost symbol that encloses all of `symbols`."""
    parts = [symbol.split(".") for symbol in set(symbols)]
    levels = itertools.takewhile(lambda level: len(set(level)) == 1, zip(*parts, strict=False))
    return ".".join(level[0] for level in levels) or MODULE_SYMBOL


def lies_within(symbol: str, outer: str) -> bool:
    """Whether `symbol` is `outer` or nested in it."""
    return outer == MODULE_SYMBOL or symbol == outer or symbol.startswith(f"{outer}.")


def find_all(lines: list[bytes], wanted: list[bytes], start: int = 0, end: int = -1) -> list[int]:
    """Every index in `start:end` at which all of `wanted` stands (it may reach beyond `end`)."""
    found: list[int] = []
    end = len(lines) if end < 0 else end
    at = start - 1
    try:
        while True:
            at = lines.index(wanted[0], at + 1, end)
            if lines[at : at + len(wanted)] == wanted:
                found.append(at)
    except ValueError:
        return found


@dataclass(frozen=True)
class Hunk:
    """One place to edit.

    Attributes:
        old_start: the first line in the old file, from 1; 0 when the old file is empty.
        new_start: the same in the new file.
        lines: each with its ' ', '+' or '-' and its line end.
        symbol: dotted name of the innermost function or class of the pristine file that encloses
            every edited line, or "<module>".
        old: the lines that must stand in the file.
        new: the lines that stand there afterwards.
    """

    old_start: int
    new_start: int
    lines: tuple[bytes, ...]
    symbol: str
    old: list[bytes] = field(init=False, repr=False, compare=False)
    new: list[bytes] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Every hunk needs both, several times; this is the cheapest way to have them.
        old = [line[1:] for line in self.lines if line[:1] != b"+"]
        new = [line[1:] for line in self.lines if line[:1] != b"-"]
        object.__setattr__(self, "old", old)
        object.__setattr__(self, "new", new)

    @property
    def old_index(self) -> int:
        """Where the old lines begin, from 0."""
        return self.old_start - 1 if self.old else self.old_start

    @property
    def new_index(self) -> int:
        """Where the new lines begin, from 0."""
        return self.new_start - 1 if self.new else self.new_start

    @property
    def delta(self) -> int:
        """How many lines the file grows by."""
        return len(self.new) - len(self.old)

    @property
    def inserts(self) -> bool:
        """Whether any line is added."""
        return any(line[:1] == b"+" for line in self.lines)

    @cached_property
    def anchors(self) -> tuple[int, ...]:
        """Offsets, in `old`, of the lines that decide which symbol is edited.

        These are the removed lines, and for an insertion the line before it. (The line after it
        where none stands before.)
        """
        found: list[int] = []
        offset, run_start, removed = 0, -1, False
        for line in (*self.lines, b" "):
            kind = line[:1]
            if kind == b" ":
                if run_start >= 0 and not removed:
                    found.append(max(run_start - 1, 0))
                run_start, removed = -1, False
            elif run_start < 0:
                run_start = offset
            if kind == b"-":
                found.append(offset)
                removed = True
            offset += kind != b"+"
        return tuple(found) if self.old else ()

    def find_symbol(self, start: int, symbol_at: Callable[[int], str]) -> str:
        """The innermost symbol around the edit, with the old lines at index `start`."""
        return find_common_symbol(symbol_at(start + offset + 1) for offset in self.anchors)


@dataclass(frozen=True)
class Patch:
    """The edits of one overlay to one upstream file.

    Attributes:
        name: the patch file's name, for messages.
        target: the edited file, relative to the tree, in POSIX spelling.
        header: each field's values, one per line of the header.
        reason: why the patch exists.
        hunks: in the order of the file, apart from each other.
    """

    name: str
    target: str
    header: Mapping[str, tuple[str, ...]]
    reason: str
    hunks: tuple[Hunk, ...]

    @property
    def symbols(self) -> tuple[str, ...]:
        """Every symbol that a hunk edits, in order of appearance."""
        return tuple(dict.fromkeys(hunk.symbol for hunk in self.hunks))

    @property
    def base_blobs(self) -> dict[str, str]:
        """For each release served, the git blob id of the pristine target."""
        pairs = (value.partition(" ") for value in self.header.get("Base-Blob", ()))
        return {tag: blob for tag, _, blob in pairs}

    @property
    def num_changed_lines(self) -> int:
        """Added and removed lines together."""
        return sum(line[:1] != b" " for hunk in self.hunks for line in hunk.lines)


def invert_patch(patch: Patch) -> Patch:
    """The patch that undoes `patch`. Its symbols are the same, its base blobs are gone."""
    header = {key: value for key, value in patch.header.items() if key != "Base-Blob"}
    hunks = tuple(map(_invert_hunk, patch.hunks))
    return Patch(patch.name, patch.target, header, patch.reason, hunks)


def _invert_hunk(hunk: Hunk) -> Hunk:
    lines: list[bytes] = []
    removed: list[bytes] = []
    added: list[bytes] = []
    for line in (*hunk.lines, b" "):
        if line[:1] == b"+":
            removed.append(b"-" + line[1:])
        elif line[:1] == b"-":
            added.append(b"+" + line[1:])
        else:
            lines += [*removed, *added, line]
            removed, added = [], []
    return Hunk(hunk.new_start, hunk.old_start, tuple(lines[:-1]), hunk.symbol)
