"""Make a patch from two texts: the least context with which each hunk stands for one place.

Lines are matched by patience diff (Bram Cohen): lines that are unique on both sides anchor the
match, what lies between anchors is matched by difflib. The result depends on the two texts alone.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from mindspeed_overlay.patch_header import name_patch
from mindspeed_overlay.patch_model import (
    Hunk,
    Patch,
    find_all,
    lies_within,
    split_lines,
)

Edit = tuple[int, int, int, int]
"""Lines i1:i2 of the old text become lines j1:j2 of the new one."""


def make_patch(
    before: bytes,
    after: bytes,
    *,
    target: str,
    header: Mapping[str, tuple[str, ...]],
    symbol_of: Callable[[int], str],
    context: int = 3,
    reason: str = "",
    name: str = "",
) -> Patch:
    """The patch that turns `before` into `after`.

    Each hunk gets one line of context on each side, and up to `context` where fewer would fit
    several places of its symbol, or would fit again after the edit.

    Args:
        before: the target's bytes, pristine or as the required overlays leave them.
        after: the edited bytes.
        target: the file's path in the tree.
        header: the fields to carry; Target and Symbol are set here.
        symbol_of: the innermost symbol around a line of `before`, from 1.
        context: the most lines of context on a side.
        reason: why the patch exists.
        name: the patch file's name; by default the dotted target.

    Raises:
        ValueError: the texts are equal, or one is binary.
    """
    if before == after:
        raise ValueError(f"{target}: nothing was changed")
    if b"\0" in before + after:
        raise ValueError(f"{target}: binary (a NUL byte)")
    texts = _Texts(split_lines(before), split_lines(after), symbol_of)
    hunks = tuple(_build_hunks(texts, context))
    symbols = dict.fromkeys(hunk.symbol for hunk in hunks)
    fields = {**header, "Target": (target,), "Symbol": (", ".join(symbols),)}
    return Patch(name or name_patch(target), target, fields, reason, hunks)


@dataclass(frozen=True)
class _Texts:
    old: list[bytes]
    new: list[bytes]
    symbol_of: Callable[[int], str]


@dataclass(frozen=True)
class _Group:
    """Edits that share a hunk, and its context."""

    edits: tuple[Edit, ...]
    lead: int
    trail: int

    @property
    def old_range(self) -> tuple[int, int]:
        return self.edits[0][0] - self.lead, self.edits[-1][1] + self.trail


def _build_hunks(texts: _Texts, context: int) -> Iterator[Hunk]:
    groups: list[_Group] = []
    for edit in diff_lines(texts.old, texts.new):
        group = _fit_context(texts, (edit,), context)
        # Neighbours whose context meets become one hunk, which may need less or more of it.
        while groups and groups[-1].old_range[1] >= group.old_range[0]:
            group = _fit_context(texts, (*groups.pop().edits, *group.edits), context)
        groups.append(group)
    return (_write_group(texts, group) for group in groups)


def _fit_context(texts: _Texts, edits: tuple[Edit, ...], context: int) -> _Group:
    start, end = edits[0][0], edits[-1][1]
    for size in range(1, context + 1):
        group = _Group(edits, min(size, start), min(size, len(texts.old) - end))
        if _stands_alone(texts, _write_group(texts, group)):
            break
    return group


def _write_group(texts: _Texts, group: _Group) -> Hunk:
    start, end = group.old_range
    lines: list[bytes] = []
    at = start
    for i1, i2, j1, j2 in group.edits:
        lines += [b" " + line for line in texts.old[at:i1]]
        lines += [b"-" + line for line in texts.old[i1:i2]]
        lines += [b"+" + line for line in texts.new[j1:j2]]
        at = i2
    lines += [b" " + line for line in texts.old[at:end]]
    new_start = group.edits[0][2] - group.lead
    bare = Hunk(start + (end > start), 0, tuple(lines), "")
    symbol = bare.find_symbol(start, texts.symbol_of)
    return Hunk(bare.old_start, new_start + bool(bare.new), bare.lines, symbol)


def _stands_alone(texts: _Texts, hunk: Hunk) -> bool:
    """Whether the hunk fits one place of its symbol, and will not fit there again."""
    if not hunk.old:
        return True
    places = [
        at
        for at in find_all(texts.old, hunk.old)
        if all(lies_within(texts.symbol_of(at + k + 1), hunk.symbol) for k in hunk.anchors)
    ]
    at = hunk.old_index
    fits_new = texts.old[at : at + len(hunk.new)] == hunk.new
    at = hunk.new_index
    fits_again = texts.new[at : at + len(hunk.old)] == hunk.old
    return len(places) == 1 and not fits_new and not fits_again


def diff_lines(old: Sequence[bytes], new: Sequence[bytes]) -> list[Edit]:
    """The edits that turn `old` into `new`, in order, none of them touching."""
    edits: list[Edit] = []
    i = j = 0
    for i2, j2 in (*_match_lines(old, new), (len(old), len(new))):
        if i2 > i or j2 > j:
            edits.append((i, i2, j, j2))
        i, j = i2 + 1, j2 + 1
    return edits


def _match_lines(old: Sequence[bytes], new: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    """Pairs of equal lines, increasing on both sides."""
    i = j = 0
    for i2, j2 in (*_find_anchors(old, new), (len(old), len(new))):
        for k, m in _match_gap(old[i:i2], new[j:j2]):
            yield i + k, j + m
        if i2 < len(old):
            yield i2, j2
        i, j = i2 + 1, j2 + 1


def _match_gap(old: Sequence[bytes], new: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    head = 0
    while head < min(len(old), len(new)) and old[head] == new[head]:
        yield head, head
        head += 1
    tail = 0
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    middle_old, middle_new = old[head : len(old) - tail], new[head : len(new) - tail]
    matcher = SequenceMatcher(None, middle_old, middle_new, autojunk=False)
    for block in matcher.get_matching_blocks():
        for k in range(block.size):
            yield head + block.a + k, head + block.b + k
    for k in range(tail, 0, -1):
        yield len(old) - k, len(new) - k


def _find_anchors(old: Sequence[bytes], new: Sequence[bytes]) -> list[tuple[int, int]]:
    """The longest increasing run of lines that are unique on both sides (patience sorting)."""
    old_counts, new_counts = Counter(old), Counter(new)
    new_at = {line: j for j, line in enumerate(new) if new_counts[line] == 1}
    pairs = [
        (i, new_at[line]) for i, line in enumerate(old) if old_counts[line] == 1 and line in new_at
    ]
    tops: list[int] = []
    heads: list[int] = []
    previous: list[int] = []
    for number, (_, j) in enumerate(pairs):
        pile = bisect_left(tops, j)
        tops[pile : pile + 1] = [j]
        heads[pile : pile + 1] = [number]
        previous.append(heads[pile - 1] if pile else -1)
    anchors: list[tuple[int, int]] = []
    number = heads[-1] if heads else -1
    while number >= 0:
        anchors.append(pairs[number])
        number = previous[number]
    return anchors[::-1]
