"""Where a function or class of an old file is in a new one.

A definition of the same qualified name is taken as it is. Where there is none, one that upstream
added and that is alike enough is taken instead, and how alike is told: a person reviews it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher

from mindspeed_overlay.port.document import Document
from mindspeed_overlay.syntax import MODULE

RENAMED_AT_LEAST = 0.6
MOVED_AT_LEAST = 0.5


@dataclass(frozen=True)
class Counterpart:
    """The symbol of the new file that stands for one of the old."""

    symbol: str
    similarity: float
    document: Document

    def explain(self, old: str) -> str:
        """For a report; empty where nothing was renamed."""
        if self.symbol == old:
            return ""
        return f"{old} is taken for {self.symbol} now ({self.similarity:.0%} alike)"


def find_counterpart(old: Document, new: Document, symbol: str) -> Counterpart | None:
    """The counterpart of `symbol` in the new state of its file, or None."""
    if symbol == MODULE or new.span_of(symbol) is not None:
        return Counterpart(symbol, 1.0, new)
    kept = {s.qualname for s in old.module.symbols}
    name = symbol.rpartition(".")[2]
    best: Counterpart | None = None
    for candidate in dict.fromkeys(s.qualname for s in new.module.symbols):
        if candidate in kept:
            continue
        same_name = candidate.rpartition(".")[2] == name
        ratio = compare_symbols(old, symbol, new, candidate)
        floor = MOVED_AT_LEAST if same_name else RENAMED_AT_LEAST
        if ratio >= floor and (best is None or ratio > best.similarity):
            best = Counterpart(candidate, ratio, new)
    return best


def find_elsewhere(
    old: Document, symbol: str, others: Iterator[tuple[str, Document]]
) -> tuple[str, Counterpart] | None:
    """The file that defines `symbol` now, among files that may have got it."""
    best: tuple[str, Counterpart] | None = None
    for path, new in others:
        if new.span_of(symbol) is None:
            continue
        ratio = compare_symbols(old, symbol, new, symbol)
        if ratio >= MOVED_AT_LEAST and (best is None or ratio > best[1].similarity):
            best = path, Counterpart(symbol, ratio, new)
    return best


def compare_symbols(old: Document, symbol: str, new: Document, candidate: str) -> float:
    """How alike two definitions are, from 0 to 1, by the statements they are made of."""
    ours, theirs = old.span_of(symbol), new.span_of(candidate)
    if ours is None or theirs is None:
        return 0.0
    left = [old.units[k].key for k in old.units_in(*ours)]
    right = [new.units[k].key for k in new.units_in(*theirs)]
    matcher = SequenceMatcher(None, left, right, autojunk=False)
    if matcher.real_quick_ratio() < MOVED_AT_LEAST:
        return 0.0
    return matcher.ratio()
