"""Find where each hunk of a patch belongs in a file, or say why it belongs nowhere."""

import hashlib
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

from mindspeed_overlay.errors import ApplyError, Problem
from mindspeed_overlay.patch_misfit import explain_misfit
from mindspeed_overlay.patch_model import Hunk, Patch, find_all

Span = tuple[int, int]
SpanOf = Callable[[str], Span | None]


class LineMap:
    """Where the lines of a file are after patches were applied to it, one after another.

    For each present line it keeps the pristine line that it is or, for an inserted one, that it
    stands before; so the numbers never decrease.
    """

    def __init__(self) -> None:
        self._origin: list[int] = []

    def find(self, index: int) -> int:
        """The present index of pristine line `index` (from 0); `index` itself at the start."""
        if not self._origin:
            return index
        return bisect_right(self._origin, index) - 1

    def follow(self, patch: Patch, offsets: tuple[int, ...], *, num_lines: int) -> None:
        """Note that `patch` was applied, to a file of `num_lines` lines."""
        old = self._origin or list(range(num_lines + 1))
        origin: list[int] = []
        at = 0
        for hunk, offset in zip(patch.hunks, offsets, strict=True):
            start = hunk.old_index + offset
            origin += old[at:start]
            at = start
            for line in hunk.lines:
                if line[:1] != b"-":
                    origin.append(old[at])
                at += line[:1] != b"+"
        self._origin = origin + old[at:]


@dataclass(frozen=True)
class File:
    """A target as it is now."""

    data: bytes
    lines: list[bytes]

    def fits(self, wanted: list[bytes], at: int) -> bool:
        """Whether `wanted` stands at index `at`."""
        return self.lines[at : at + len(wanted)] == wanted

    def has_blob(self, blobs: dict[str, str]) -> bool:
        """Whether this is one of the pristine files whose git blob ids are given."""
        head = f"blob {len(self.data)}\0".encode()
        return hashlib.sha1(head + self.data, usedforsecurity=False).hexdigest() in blobs.values()


def locate_hunks(
    data: bytes,
    lines: list[bytes],
    patch: Patch,
    *,
    span_of: SpanOf,
    line_map: LineMap | None = None,
) -> list[int]:
    """The index of each hunk's first old line.

    Raises:
        ApplyError: one problem for each hunk that has no place.
    """
    file = File(data, lines)
    starts: list[int] = []
    problems: list[Problem] = []
    end = 0
    for number, hunk in enumerate(patch.hunks, 1):
        start = _locate_hunk(file, patch, hunk, span_of, line_map)
        if isinstance(start, int) and start < end:
            start = ("E506", f"would land at line {start + 1}, before the hunk above it")
        if isinstance(start, int):
            starts.append(start)
            end = start + len(hunk.old)
            continue
        code, why = start
        problems.append(_report(patch, number, hunk, code, why))
    if problems:
        raise ApplyError(*problems)
    return starts


def _locate_hunk(
    file: File, patch: Patch, hunk: Hunk, span_of: SpanOf, line_map: LineMap | None
) -> int | tuple[str, str]:
    """The place of one hunk, or a code and the reason that it has none."""
    recorded = hunk.old_index
    if not hunk.old:
        return 0 if not file.lines else ("E502", "expects an empty file")
    expected = {recorded, line_map.find(recorded) if line_map else recorded}
    fitting = [at for at in sorted(expected) if file.fits(hunk.old, at)]
    if len(fitting) == 1:
        at = fitting[0]
        # Old and new text can both fit where lines repeat. Only the pristine file's hash can tell.
        if hunk.new and file.fits(hunk.new, at) and not file.has_blob(patch.base_blobs):
            return "E505", f"fits line {at + 1}, but its new text stands there too: applied before?"
        return _check_last_line(file, hunk, at)
    span = span_of(hunk.symbol)
    if span is None:
        return explain_misfit(file.lines, hunk, None)
    places = _search(file, hunk, hunk.old, hunk.anchors, span)
    if len(places) > 1:
        where = ", ".join(str(at + 1) for at in places)
        return "E503", f"is ambiguous: its old text stands at lines {where} of {hunk.symbol}"
    if (there := _find_applied(file, hunk, span)) is not None:
        return "E505", f"finds its new text at line {there + 1} already: applied before?"
    if not places:
        return explain_misfit(file.lines, hunk, span)
    return _check_last_line(file, hunk, places[0])


def _search(
    file: File, hunk: Hunk, text: list[bytes], anchors: tuple[int, ...], span: Span
) -> list[int]:
    """Where `text` stands with all its anchor lines inside a symbol's span."""
    first, last = span[0] - 1 - min(anchors), span[1] - max(anchors)
    return find_all(file.lines, text, max(first, 0), max(last, 0))


def _find_applied(file: File, hunk: Hunk, span: Span) -> int | None:
    """Where the hunk's new text stands already.

    The whole symbol is searched for added lines. What a deletion leaves may be too common for
    that, so its new text counts only at the recorded place.
    """
    if not hunk.inserts:
        fits = bool(hunk.new) and file.fits(hunk.new, hunk.old_index)
        return hunk.old_index if fits else None
    anchors = tuple(k for k, line in enumerate(_new_side(hunk)) if line[:1] == b"+")
    places = _search(file, hunk, hunk.new, anchors, span)
    return places[0] if places else None


def _new_side(hunk: Hunk) -> list[bytes]:
    return [line for line in hunk.lines if line[:1] != b"-"]


def _check_last_line(file: File, hunk: Hunk, at: int) -> int | tuple[str, str]:
    """Refuse to put a line without a line feed anywhere but at the end of the file."""
    ends_file = at + len(hunk.old) == len(file.lines)
    if hunk.new and not hunk.new[-1].endswith(b"\n") and not ends_file:
        return "E502", f"ends the file at line {at + len(hunk.old)}, and more lines follow there"
    return at


def _report(patch: Patch, number: int, hunk: Hunk, code: str, why: str) -> Problem:
    head = f"hunk {number} of {len(patch.hunks)}"
    place = f"{patch.target}:{hunk.old_start} (in {hunk.symbol})"
    return Problem(
        code=code,
        message=f"{head} does not fit {place}: it {why}",
        patch=patch.name,
        hunk=number,
        path=patch.target,
        line=hunk.old_start,
        symbol=hunk.symbol,
    )
