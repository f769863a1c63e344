"""Which lines of a patched file come from which hunk. Pure: from what landed to line ranges."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mindspeed_overlay.apply import Landing
from mindspeed_overlay.patch import split_lines

Owner = tuple[str, str, int]
"""Overlay, patch file, number of the hunk from 1."""


@dataclass(frozen=True)
class LineRange:
    """Lines `first` to `last` of a patched file, from 1, that one hunk brought."""

    first: int
    last: int
    overlay: str
    patch: str
    hunk: int

    def to_json(self) -> list[int | str]:
        """As `build.json` holds it: short, for there are many."""
        return [self.first, self.last, self.overlay, self.patch, self.hunk]


def trace_lines(landings: Iterable[Landing]) -> Mapping[str, tuple[LineRange, ...]]:
    """For each patched path the lines that hunks brought, in the file as all patches leave it."""
    owners: dict[str, list[Owner | None]] = {}
    for landing in landings:
        target = landing.patch.target
        before = owners.get(target) or [None] * len(split_lines(landing.before))
        owners[target] = _follow(before, landing)
    return {target: tuple(_join(lines)) for target, lines in owners.items()}


def _follow(before: list[Owner | None], landing: Landing) -> list[Owner | None]:
    """The owners of the lines after one more patch."""
    after: list[Owner | None] = []
    at = 0
    pairs = zip(landing.patch.hunks, landing.applied.offsets, strict=True)
    for number, (hunk, offset) in enumerate(pairs, 1):
        start = hunk.old_index + offset
        after += before[at:start]
        at = start
        for line in hunk.lines:
            if line[:1] == b"+":
                after.append((landing.overlay, landing.patch.name, number))
                continue
            if line[:1] == b" ":
                after.append(before[at])
            at += 1
    return after + before[at:]


def _join(owners: list[Owner | None]) -> Iterable[LineRange]:
    """Runs of lines with one owner."""
    start = 0
    for at in range(1, len(owners) + 1):
        if at == len(owners) or owners[at] != owners[start]:
            owner = owners[start]
            if owner is not None:
                yield LineRange(start + 1, at, *owner)
            start = at
