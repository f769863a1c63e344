"""Apply patches to bytes in memory: exact, proved, and all failures at once.

A hunk applies where it was recorded, or where that place is now after the patches before it. It may
move elsewhere only when its old text stands exactly once inside its recorded symbol. There is no
fuzz and no tolerance for white space. After each patch the hunks are undone on the result, which
must give the input back.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from mindspeed_overlay.errors import ApplyError, Problem
from mindspeed_overlay.patch_model import Patch, split_lines
from mindspeed_overlay.patch_place import LineMap, SpanOf, locate_hunks
from mindspeed_overlay.paths import explain_unsafe_path
from mindspeed_overlay.syntax_model import MODULE

Swap = tuple[int, bytes, bytes]
"""At this offset, the old text becomes the new one."""

_LINE_FEED = 10


@dataclass(frozen=True)
class Applied:
    """A patched file, and by how many lines each hunk had moved."""

    data: bytes
    offsets: tuple[int, ...]


@dataclass(frozen=True)
class Landing:
    """One patch that applied: what it met, and what it left."""

    overlay: str
    patch: Patch
    before: bytes
    applied: Applied


def apply_patch(
    data: bytes, patch: Patch, *, span_of: SpanOf, line_map: LineMap | None = None
) -> Applied:
    """Apply one patch to its target's bytes.

    Args:
        data: the target as it is now.
        patch: the edits.
        span_of: first and last line of a symbol in `data`, None when there is none.
            Asked only for a hunk that does not fit its recorded line.
        line_map: where the pristine file's lines are in `data`, after earlier patches.

    Raises:
        ApplyError: E502 to E509, for every hunk that does not fit.
    """
    if b"\0" in data:
        raise ApplyError(_explain(patch, "E509", "is binary (it holds a NUL byte)"))
    lines = split_lines(data)
    starts = locate_hunks(data, lines, patch, span_of=span_of, line_map=line_map)
    swaps = _find_swaps(lines, starts, patch)
    result = _exchange(data, swaps)
    if not _undoes(result, data, swaps):
        raise ApplyError(_explain(patch, "E508", "is not restored by undoing the patch"))
    hunks = zip(starts, patch.hunks, strict=True)
    return Applied(result, tuple(start - hunk.old_index for start, hunk in hunks))


def _explain(patch: Patch, code: str, what: str) -> Problem:
    message = f"{patch.target} {what}"
    return Problem(code=code, message=message, patch=patch.name, path=patch.target)


def _find_swaps(lines: list[bytes], starts: list[int], patch: Patch) -> list[Swap]:
    """The hunks as exchanges of bytes, from the lines at which they start."""
    swaps: list[Swap] = []
    at_line = at = 0
    for start, hunk in zip(starts, patch.hunks, strict=True):
        at += sum(map(len, lines[at_line:start]))
        at_line = start
        swaps.append((at, b"".join(hunk.old), b"".join(hunk.new)))
    return swaps


def _exchange(data: bytes, swaps: list[Swap]) -> bytes:
    """`data` with each old text, at its offset, exchanged for the new one."""
    parts: list[bytes] = []
    at = 0
    for offset, old, new in swaps:
        parts += (data[at:offset], new)
        at = offset + len(old)
    return b"".join([*parts, data[at:]])


def _undoes(result: bytes, data: bytes, swaps: list[Swap]) -> bool:
    """Whether the new texts are whole lines of `result` that, changed back, give `data`."""
    back: list[Swap] = []
    shift = 0
    for offset, old, new in swaps:
        at = offset + shift
        end = at + len(new)
        shift += len(new) - len(old)
        if not result.startswith(new, at) or not _parts_lines(result, at, end):
            return False
        back.append((at, new, old))
    return _exchange(result, back) == data


def _parts_lines(data: bytes, *offsets: int) -> bool:
    return all(at in (0, len(data)) or data[at - 1] == _LINE_FEED for at in offsets)


def apply_patches(
    files: Mapping[str, bytes],
    patches: Iterable[tuple[str, Patch]],
    *,
    release: str = "TAG",
    parse_spans: Callable[[bytes], SpanOf] | None = None,
) -> dict[str, bytes]:
    """Apply patches of several overlays to a tree, in order.

    Args:
        files: the pristine tree.
        patches: overlay ids and patches. Several may edit one file, one after another.
        release: the tree's tag, for the next command to type.
        parse_spans: reads a file's symbols; by default the syntax module, for `.py` files.

    Returns:
        A new tree; `files` is left alone.

    Raises:
        ApplyError: every failure of the run.
    """
    changed = dict(files)
    for landing in land_patches(files, patches, release=release, parse_spans=parse_spans):
        changed[landing.patch.target] = landing.applied.data
    return changed


def land_patches(
    files: Mapping[str, bytes],
    patches: Iterable[tuple[str, Patch]],
    *,
    release: str = "TAG",
    parse_spans: Callable[[bytes], SpanOf] | None = None,
) -> list[Landing]:
    """The same as `apply_patches`, giving what each patch met and left."""
    patches = list(patches)
    counts = Counter(patch.target for _, patch in patches)
    current: dict[str, bytes] = {}
    maps = {target: LineMap() for target, count in counts.items() if count > 1}
    landings: list[Landing] = []
    problems: list[Problem] = []
    for overlay, patch in patches:
        target = patch.target
        data = current.get(target, files.get(target))
        if data is None or explain_unsafe_path(target):
            problems.append(_report(_miss(patch, release), overlay, release))
            continue
        span_of = _read_spans(target, data, parse_spans)
        line_map = maps.get(target)
        try:
            applied = apply_patch(data, patch, span_of=span_of, line_map=line_map)
        except ApplyError as error:
            problems += (_report(problem, overlay, release) for problem in error.problems)
            continue
        if line_map is not None:
            line_map.follow(patch, applied.offsets, num_lines=data.count(b"\n") + 1)
        current[target] = applied.data
        landings.append(Landing(overlay, patch, data, applied))
    if problems:
        raise ApplyError(*problems)
    return landings


def _miss(patch: Patch, release: str) -> Problem:
    if unsafe := explain_unsafe_path(patch.target):
        return _explain(patch, "E512", f"is refused: {unsafe}")
    return _explain(patch, "E501", f"is not in {release}" if release != "TAG" else "is missing")


def _report(problem: Problem, overlay: str, release: str) -> Problem:
    hint = f"run `mindspeed-overlay port {overlay} --to {release}`"
    if problem.hint:
        hint = f"{problem.hint}; {hint}"
    return replace(problem, overlay=overlay, hint=hint)


def _read_spans(target: str, data: bytes, parse_spans: Callable[[bytes], SpanOf] | None) -> SpanOf:
    """A `span_of` that parses the file when it is first asked."""

    def span_of(symbol: str) -> tuple[int, int] | None:
        if symbol == MODULE:
            return 1, data.count(b"\n") + 1
        if parse_spans is not None:
            return parse_spans(data)(symbol)
        if not target.endswith(".py"):
            return None
        # The parser is a compiled extension; most runs never need it.
        from mindspeed_overlay.syntax import parse_module

        spans = parse_module(data).spans_of(symbol)
        # Of several definitions (a property and its setter) the hull: what is unique there is
        # unique in them, and `check_symbols` sees whether it stands in one of them.
        return (min(spans)[0], max(last for _, last in spans)) if spans else None

    return span_of


def check_symbols(landing: Landing, *, symbol_at: Callable[[int], str]) -> list[Problem]:
    """Hunks that applied in another symbol than the one they were made for.

    Args:
        landing: a patch that applied.
        symbol_at: the innermost symbol around a line of the file before this patch, from 1.
    """
    patch = landing.patch
    problems: list[Problem] = []
    pairs = zip(patch.hunks, landing.applied.offsets, strict=True)
    for number, (hunk, offset) in enumerate(pairs, 1):
        start = hunk.old_index + offset
        found = hunk.find_symbol(start, symbol_at)
        if found == hunk.symbol:
            continue
        place = f"{patch.target}:{start + 1}"
        message = f"hunk {number} of {len(patch.hunks)} lands at {place} in {found}"
        problems.append(
            Problem(
                code="E507",
                message=f"{message}; it was made for {hunk.symbol}",
                overlay=landing.overlay,
                patch=patch.name,
                hunk=number,
                path=patch.target,
                line=start + 1,
                symbol=found,
                hint=f"run `mindspeed-overlay refresh {landing.overlay}` and review the place",
            )
        )
    return problems
