"""The state of one overlay on one release, as a value with its reason."""

from dataclasses import dataclass, field
from typing import Any, Literal

State = Literal[
    "verified", "applies", "ported", "drift", "conflict", "absorbed", "native", "not claimed",
    "not checked",
]  # fmt: skip

MEANING: dict[State, str] = {
    "verified": "applies, and its tests passed on this release with exactly these files",
    "applies": "the oldest form applies and passes the gate",
    "ported": "a form made for this release or a later one than the oldest applies",
    "drift": "applies, and upstream code that it edits or uses changed unread",
    "conflict": "does not apply, or breaks what the gate checks",
    "absorbed": "upstream contains the change",
    "native": "upstream owns the option here; the overlay maps onto it or does nothing",
    "not claimed": "the overlay's `releases` leave this one out",
    "not checked": "nothing could be looked at",
}
"""In the order of the legend."""

SHORT: dict[State, str] = {
    "verified": "verified",
    "applies": "applies",
    "ported": "ported",
    "drift": "drift",
    "conflict": "CONFLICT",
    "absorbed": "absorbed",
    "native": "native",
    "not claimed": "-",
    "not checked": "?",
}


@dataclass(frozen=True)
class Cell:
    """One overlay on one release.

    Attributes:
        reason: one sentence.
        details: lines for whoever asks: problems, unread symbols, skipped patches.
        since: the since-tag of the form that serves the release, "" for none.
    """

    overlay: str
    release: str
    state: State
    reason: str
    details: tuple[str, ...] = ()
    since: str = ""

    def to_json(self) -> dict[str, Any]:
        """For machines, and for the cache."""
        return {
            "overlay": self.overlay,
            "release": self.release,
            "state": self.state,
            "reason": self.reason,
            "details": list(self.details),
            "since": self.since,
        }


def read_cell(table: dict[str, Any]) -> Cell:
    """What `to_json` wrote."""
    return Cell(**{**table, "details": tuple(table["details"])})


@dataclass(frozen=True)
class Matrix:
    """All cells, by overlay in series order and by release, oldest first."""

    overlays: tuple[tuple[str, str], ...]
    """(id, summary)."""
    releases: tuple[str, ...]
    cells: dict[tuple[str, str], Cell] = field(default_factory=dict)

    def counts(self) -> dict[str, int]:
        """How many cells are in each state."""
        found: dict[str, int] = dict.fromkeys(MEANING, 0)
        for cell in self.cells.values():
            found[cell.state] += 1
        return found

    def to_json(self) -> dict[str, Any]:
        """For machines."""
        return {
            "releases": list(self.releases),
            "overlays": [{"id": i, "summary": summary} for i, summary in self.overlays],
            "counts": self.counts(),
            "cells": [cell.to_json() for cell in self.cells.values()],
        }
