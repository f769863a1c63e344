"""What is wrong with an overlay though it applies: idle hunks, unused sets, copied code, overlaps.

Header fields and the budget of changed lines are checked with the header itself.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from mindspeed_overlay.apply import Landing
from mindspeed_overlay.errors import Problem
from mindspeed_overlay.overlay import Overlay
from mindspeed_overlay.patch import Hunk, Patch, split_lines
from mindspeed_overlay.patch_diff import diff_lines
from mindspeed_overlay.tree import Files

_SPACE = re.compile(rb"(?<=\S)[ \t]+")


def lint_patch(patch: Patch, *, overlay: str) -> list[Problem]:
    """Hunks that serve nothing (E430), and white space at the end of added lines (E431)."""
    problems = []
    for number, hunk in enumerate(patch.hunks, 1):
        removed = [line[1:] for line in hunk.lines if line[:1] == b"-"]
        added = [line[1:] for line in hunk.lines if line[:1] == b"+"]
        if is_idle(removed, added):
            message = "changes white space or comments only"
            hint = "drop the hunk: it can conflict and does nothing"
            problems.append(_about(patch, overlay, number, "E430", message, hint))
        if any((text := line.rstrip(b"\r\n")) != text.rstrip() for line in added):
            message = "adds white space at the end of a line"
            hint = f"remove it, then run `mindspeed-overlay refresh {overlay}`"
            problems.append(_about(patch, overlay, number, "E431", message, hint))
    return problems


def _about(patch: Patch, overlay: str, number: int, code: str, message: str, hint: str) -> Problem:
    hunk = patch.hunks[number - 1]
    return Problem(
        code=code,
        overlay=overlay,
        patch=patch.name,
        hunk=number,
        path=patch.target,
        line=hunk.old_start,
        symbol=hunk.symbol,
        message=f"{patch.name}: hunk {number} of {len(patch.hunks)} {message}",
        hint=hint,
    )


def is_idle(removed: Iterable[bytes], added: Iterable[bytes]) -> bool:
    """Whether only comments, blank lines and spaces inside of lines change; indentation counts."""
    return _read_code(removed) == _read_code(added)


def _read_code(lines: Iterable[bytes]) -> list[bytes]:
    code = (line.rstrip() for line in lines)
    return [_SPACE.sub(b"", line) for line in code if line and line.lstrip()[:1] != b"#"]


def lint_sets(overlay: Overlay, order: tuple[str, ...]) -> list[Problem]:
    """Patch and file sets that no release uses (E432)."""
    served = [tag for tag in order if overlay.serves(tag, order)]
    used = {overlay.patch_since(tag, order) for tag in served}
    problems = [
        Problem(
            code="E432",
            overlay=overlay.id,
            message=f"patches/{since}/ serves no release",
            hint="the overlay's `releases` leave it out, or a newer set hides it: delete it",
        )
        for since in overlay.patch_sets
        if since not in used
    ]
    shown = [overlay.files_for(tag, order) for tag in served]
    problems += [
        Problem(
            code="E432",
            overlay=overlay.id,
            message=f"files{'@' + since if since else ''}/ serves no release",
            hint="the overlay's `releases` leave it out, or a newer set hides it: delete it",
        )
        for since, files in overlay.file_sets.items()
        if files and not any(files is other for other in shown)
    ]
    return problems


@dataclass(frozen=True)
class Overlap:
    """Two overlays that edit one function; `at_line` where they edit the same place of it."""

    target: str
    symbol: str
    overlays: tuple[str, str]
    at_line: int = 0

    def to_json(self) -> dict[str, object]:
        """For machines."""
        return {
            "path": self.target,
            "symbol": self.symbol,
            "overlays": list(self.overlays),
            "line": self.at_line,
        }


def find_overlaps(landings: Iterable[tuple[str, Landing]], pristine: Files) -> list[Overlap]:
    """Pairs of overlays that edit one symbol, or one place, of an upstream file.

    Args:
        landings: (overlay, one of its own patches as it landed with only its requirements).
        pristine: the release's files; places are lines of these.
    """
    by_target: dict[str, list[tuple[str, Landing]]] = {}
    for overlay, landing in landings:
        by_target.setdefault(landing.patch.target, []).append((overlay, landing))
    return [
        overlap
        for target, found in by_target.items()
        if len(found) > 1 and target in pristine
        for overlap in _find_in_file(target, found, split_lines(pristine[target]))
    ]


def _find_in_file(
    target: str, found: list[tuple[str, Landing]], lines: list[bytes]
) -> Iterator[Overlap]:
    edits = [(overlay, _read_edits(landing, lines)) for overlay, landing in found]
    for k, (one, mine) in enumerate(edits):
        for other, theirs in edits[k + 1 :]:
            for symbol in dict.fromkeys(s for s, _, _ in mine if s in {t for t, _, _ in theirs}):
                places = [
                    max(a, c)
                    for s, a, b in mine
                    for t, c, d in theirs
                    if symbol == s == t and a <= d and c <= b
                ]
                yield Overlap(target, symbol, (one, other), min(places, default=0))


def _read_edits(landing: Landing, pristine: list[bytes]) -> list[tuple[str, int, int]]:
    """(symbol, first, last) of each edited place, in lines of the pristine file; gaps count from
    the line before them."""
    origin = _origin_lines(pristine, split_lines(landing.before))
    edits = []
    for hunk, offset in zip(landing.patch.hunks, landing.applied.offsets, strict=True):
        at = hunk.old_index + offset
        touched = [at + k for k, line in enumerate(_old_marks(hunk)) if line]
        numbers = [origin[k] for k in touched if k < len(origin)]
        if numbers:
            edits.append((hunk.symbol, min(numbers), max(numbers)))
    return edits


def _old_marks(hunk: Hunk) -> list[bool]:
    """For each old line whether it is removed, or stands right before an insertion."""
    marks: list[bool] = []
    for line in hunk.lines:
        if line[:1] == b"+":
            if marks:
                marks[-1] = True
        else:
            marks.append(line[:1] == b"-")
    return marks


def _origin_lines(pristine: list[bytes], before: list[bytes]) -> list[int]:
    """For each line of `before` the pristine line, from 1, that it is or follows."""
    origin: list[int] = []
    at = 0
    for i1, i2, j1, j2 in diff_lines(pristine, before):
        origin += range(at + 1, i1 + 1)
        origin += [i1] * (j2 - j1)
        at = i2
    return [*origin, *range(at + 1, len(pristine) + 1)]


def report_overlaps(overlaps: Iterable[Overlap], requires: Mapping[str, set[str]]) -> list[Problem]:
    """E433 for two overlays that edit one place and do not know of each other.

    Args:
        requires: each overlay's id to all that it requires, directly or not.
    """
    problems = []
    for overlap in overlaps:
        one, other = overlap.overlays
        related = other in requires.get(one, set()) or one in requires.get(other, set())
        if overlap.at_line and not related:
            where = f"{overlap.target}:{overlap.at_line} (in {overlap.symbol})"
            problems.append(
                Problem(
                    code="E433",
                    overlay=other,
                    path=overlap.target,
                    line=overlap.at_line,
                    symbol=overlap.symbol,
                    message=f"edits {where}, where {one} does too",
                    hint=f"require {one}, or move the hook into an overlay that both require",
                )
            )
    return problems
