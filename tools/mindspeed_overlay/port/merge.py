"""Carry all edits of one file: base, edited, and the new state of upstream's file.

Each edit is carried on its own, first by lines and then by statements, within the symbol that it
was made in. What can't be carried is given as a conflict with its three texts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from mindspeed_overlay.patch_diff import Edit, diff_lines
from mindspeed_overlay.patch_model import Hunk, find_common_symbol
from mindspeed_overlay.port.document import Document
from mindspeed_overlay.port.everywhere import find_substitution, place_keyword
from mindspeed_overlay.port.left_behind import explain_left_behind
from mindspeed_overlay.port.marks import Failed, exchange, mark_conflicts
from mindspeed_overlay.port.model import Misfit, Move, Outcome, Piece, Placed, Swap
from mindspeed_overlay.port.place import Region, place_lines
from mindspeed_overlay.port.rename import rename_words
from mindspeed_overlay.port.slots import Statements
from mindspeed_overlay.port.split import place_split
from mindspeed_overlay.port.statements import place_statements
from mindspeed_overlay.port.symbols import Counterpart, find_counterpart
from mindspeed_overlay.syntax import MODULE

Vanished = Callable[[Document, str, Document], bool]
"""Whether nothing is left of a symbol that the new file lacks."""

Elsewhere = Callable[[Document, str], tuple[str, Counterpart] | None]
"""Finds the file that a symbol moved to."""


@dataclass(frozen=True)
class Merged:
    """A file with the edits that could be carried.

    Attributes:
        data: upstream's file with these edits.
        pieces: what became of each edit, in order.
        moves: edits for other files.
        marked: `data` with the other edits between conflict markers.
    """

    data: bytes
    pieces: tuple[Piece, ...]
    moves: tuple[Move, ...] = ()
    marked: bytes = b""

    @property
    def is_clean(self) -> bool:
        """Whether every edit was carried."""
        return all(piece.outcome != "conflict" for piece in self.pieces)


def merge_file(
    base: bytes,
    edited: bytes,
    new: bytes,
    *,
    python: bool = True,
    hunks: Sequence[Hunk] = (),
    elsewhere: Elsewhere = lambda _document, _symbol: None,
    vanished: Vanished = lambda _old, _symbol, _new: False,
    labels: tuple[str, str] = ("upstream", "overlay"),
) -> Merged:
    """Carry the edits that turn `base` into `edited` over to `new`.

    Args:
        base: the file that the edits were made for.
        edited: the same with the edits.
        new: upstream's present file.
        python: whether the file has symbols and statements.
        hunks: of the patch, to number the edits by.
        elsewhere: asked for symbols that the file has lost.
        vanished: asked whether such a symbol left no trace, so that its edits have no object.
        labels: written at conflict markers: of `new`, and of the edits.
    """
    documents = (Document(base, python), Document(edited, python), Document(new, python))
    work = _Merge(documents, elsewhere, vanished)
    for edit in _join(diff_lines(work.old.lines, work.edited.lines), work.old, work.edited):
        work.carry(edit, _number(hunks, edit))
    merged = work.finish(labels)
    if python and not merged.is_clean and not merged.moves:
        return _substitute(documents, merged) or merged
    return merged


def _substitute(documents: tuple[Document, Document, Document], merged: Merged) -> Merged | None:
    """The same where all edits exchange one name for another: done at upstream's places instead."""
    old, edited, new = documents
    name = find_substitution(old, edited)
    if name is None:
        return None
    swaps = name.find(new)
    if not swaps:
        note = f"it put {name}, which upstream uses here no more"
        gone = tuple(replace(p, outcome="dropped", note=note) for p in merged.pieces)
        return Merged(new.data, gone, (), new.data)
    # The imports were carried; names that were exchanged by then are not there any more.
    data = exchange(merged.data, name.find(Document(merged.data)))
    note = f"it put {name}, and does so at all {len(swaps)} places that upstream has now"
    pieces = tuple(
        Piece(hunk=p.hunk, symbol=p.symbol, line=p.line, outcome="structural", note=note)
        if p.outcome == "conflict"
        else p
        for p in merged.pieces
    )
    return Merged(data, pieces, (), data)


def _join(edits: list[Edit], old: Document, edited: Document) -> list[Edit]:
    """Edits inside one statement are one edit."""
    joined: list[Edit] = []
    for edit in edits:
        if joined and (last := joined[-1]) and _share_unit(old, last[1], edit[0]):
            joined[-1] = last[0], edit[1], last[2], edit[3]
        else:
            joined.append(edit)
    return joined


def _share_unit(document: Document, end: int, start: int) -> bool:
    """Whether one statement owns both the line before `end` and the line at `start`."""
    left = document.units_touching(max(end - 1, 0), max(end, 1))
    right = document.units_touching(start, start + 1)
    if not left or not right or left[-1] != right[0]:
        return False
    unit = document.units[right[0]]
    return unit.first < end and start < unit.end


def _number(hunks: Sequence[Hunk], edit: Edit) -> int:
    for number, hunk in enumerate(hunks, 1):
        if hunk.old_index <= edit[0] <= hunk.old_index + len(hunk.old):
            return number
    return 1


class _Merge:
    def __init__(
        self,
        documents: tuple[Document, Document, Document],
        elsewhere: Elsewhere,
        vanished: Vanished,
    ) -> None:
        self.old, self.edited, self.new = documents
        self._elsewhere = elsewhere
        self._vanished = vanished
        self._statements: dict[tuple[int, str, str], Statements] = {}
        self._pieces: list[Piece] = []
        self._swaps: list[Swap] = []
        self._moves: list[Move] = []
        self._failed: list[Failed] = []

    def carry(self, edit: Edit, hunk: int) -> None:
        symbol = self._symbol_of(edit)
        piece = Piece(hunk=hunk, symbol=symbol, line=edit[0] + 1, outcome="conflict")
        counterpart = find_counterpart(self.old, self.new, symbol)
        path = ""
        if counterpart is None and (found := self._elsewhere(self.old, symbol)) is not None:
            path, counterpart = found
        if counterpart is None and self._vanished(self.old, symbol, self.new):
            note = f"upstream removed {symbol} and all traces of it"
            self._pieces.append(replace(piece, outcome="dropped", note=note))
            return
        if counterpart is None:
            self._fail(edit, piece, f"upstream has no {symbol} any more")
            return
        placed = self._place(edit, symbol, counterpart)
        if isinstance(placed, Misfit):
            self._fail(edit, piece, placed.why)
            return
        notes = [counterpart.explain(symbol), f"it moved to {path}" if path else "", placed.note]
        moved = bool(path) or counterpart.symbol != symbol
        outcome: Outcome = "moved" if moved and placed.how != "absorbed" else placed.how
        note = "; ".join(filter(None, notes))
        self._pieces.append(replace(piece, outcome=outcome, note=note))
        if path:
            self._moves += (Move(path, swap) for swap in placed.swaps)
        elif (clash := self._overlap(placed.swaps)) is not None:
            self._pieces.pop()
            self._fail(edit, piece, clash)
        else:
            self._swaps += placed.swaps

    def _overlap(self, swaps: Sequence[Swap]) -> str | None:
        for swap in swaps:
            for other in self._swaps:
                if swap.start < other.end and other.start < swap.end:
                    return "it would change what another edit changes"
        return None

    def _symbol_of(self, edit: Edit) -> str:
        i1, i2 = edit[:2]
        lines = range(i1, i2) if i2 > i1 else [max(i1 - 1, 0)]
        symbol = find_common_symbol(self.old.symbol_at(k + 1) for k in lines)
        # Lines added below a definition are not in it, although the line before them is.
        while symbol != MODULE and i1 == i2 and self._stands_below(symbol, edit):
            symbol = symbol.rpartition(".")[0] or MODULE
        return symbol

    def _stands_below(self, symbol: str, edit: Edit) -> bool:
        span = self.old.span_of(symbol)
        if span is None or edit[0] < span[1]:
            return False
        first = next((line for line in self.edited.lines[edit[2] : edit[3]] if line.strip()), b"")
        head = self.old.lines[span[0]]
        return _width(first) <= _width(head)

    def _place(self, edit: Edit, symbol: str, counterpart: Counterpart) -> Placed | Misfit:
        key = (id(counterpart.document), counterpart.symbol, symbol)
        if (statements := self._statements.get(key)) is None:
            spans = self.old.span_of(symbol), counterpart.document.span_of(counterpart.symbol)
            assert spans[0] is not None
            assert spans[1] is not None
            region = Region(self.old, counterpart.document, spans[0], spans[1])
            statements = self._statements[key] = Statements(region)
        by_lines = place_lines(statements.region, edit, self.edited.lines[edit[2] : edit[3]])
        if not self.old.python:
            return by_lines
        if isinstance(by_lines, Placed):
            placed: Placed | Misfit = _follow_renames(by_lines, statements)
        else:
            placed = place_statements(statements, self.edited, edit)
        if isinstance(placed, Misfit):
            if counterpart.symbol == symbol != MODULE and (
                split := place_split((self.old, self.edited, self.new), edit, symbol)
            ):
                return split
            return place_keyword(statements, self.edited, edit) or placed
        if placed.swaps and not statements.region.same:
            left = explain_left_behind(statements, self.edited, edit)
            return Misfit(left) if left else placed
        return placed

    def _fail(self, edit: Edit, piece: Piece, why: str) -> None:
        failed = self._frame(edit, piece.symbol)
        texts = [
            b"".join(document.lines[start:end])
            for document, (start, end) in (
                (self.old, failed.base),
                (self.new, failed.new),
                (self.edited, failed.edited),
            )
        ]
        base, ours, theirs = texts
        self._failed.append(failed)
        self._pieces.append(replace(piece, note=why, base=base, ours=ours, theirs=theirs))

    def _frame(self, edit: Edit, symbol: str) -> Failed:
        """The smallest part of the new file that lies between lines both files have."""
        counterpart = find_counterpart(self.old, self.new, symbol)
        spans = [
            (0, len(self.old.lines)) if counterpart is None else self.old.span_of(symbol),
            (0, len(self.new.lines))
            if counterpart is None
            else self.new.span_of(counterpart.symbol),
        ]
        assert spans[0] is not None
        assert spans[1] is not None
        region = Region(self.old, self.new, spans[0], spans[1])
        i1, i2, j1, j2 = edit
        while i1 > spans[0][0] and region.find_line(i1 - 1) is None:
            i1, j1 = i1 - 1, j1 - 1
        while i2 < spans[0][1] and region.find_line(i2) is None:
            i2, j2 = i2 + 1, j2 + 1
        start = region.find_line(i1 - 1)
        end = region.find_line(i2)
        low = (start if start is not None else spans[1][0] - 1) + 1
        high = end if end is not None else spans[1][1]
        return Failed((low, max(low, high)), (i1, i2), (max(j1, 0), j2))

    def finish(self, labels: tuple[str, str]) -> Merged:
        data = exchange(self.new.data, self._swaps)
        marked = (
            mark_conflicts((self.old, self.edited, self.new), self._swaps, self._failed, labels)
            if self._failed
            else data
        )
        return Merged(data, tuple(self._pieces), tuple(self._moves), marked)


def _follow_renames(placed: Placed, statements: Statements) -> Placed:
    """An edit that has its place, with the names that upstream uses there now."""
    if placed.how == "re-anchored" or not placed.swaps:
        return placed
    swaps = tuple(replace(s, text=rename_words(s.text, statements.renames)) for s in placed.swaps)
    if swaps == placed.swaps:
        return placed
    return Placed("structural", swaps, "; ".join(statements.explain_renames()))


def _width(line: bytes) -> int:
    return len(line) - len(line.lstrip())
