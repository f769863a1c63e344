"""What can become of an edit, a patch, an overlay when it is carried to another release."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

Outcome = Literal[
    "exact",
    "offset",
    "re-anchored",
    "merged",
    "structural",
    "moved",
    "resolved",
    "absorbed",
    "dropped",
    "gone",
    "blocked",
    "conflict",
]
"""From good to bad. `exact`: where it was; `offset`: the same text some lines away in its symbol;
`re-anchored`: its function is the same but elsewhere or in another layout; `merged`: 3-way by
lines; `structural`: by statements; `moved`: in another symbol or file; `resolved`: by hand;
`absorbed`: upstream has it; `dropped`: what it edits is gone without a trace; `gone`: its target is
gone, traces are left; `blocked`: a requirement conflicts."""

RANK: dict[str, int] = {
    name: n
    for n, name in enumerate(
        [
            "exact",
            "offset",
            "re-anchored",
            "merged",
            "absorbed",
            "structural",
            "moved",
            "dropped",
            "resolved",
            "gone",
            "blocked",
            "conflict",
        ]
    )
}
CARRIED = frozenset(RANK) - {"gone", "blocked", "conflict"}


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """The outcome to report for several."""
    return max(outcomes, key=RANK.__getitem__, default="exact")


@dataclass(frozen=True)
class Swap:
    """In the new file, bytes `start:end` become `text`."""

    start: int
    end: int
    text: bytes


@dataclass(frozen=True)
class Move:
    """A swap that belongs in another file: the symbol moved there."""

    path: str
    swap: Swap


@dataclass(frozen=True)
class Misfit:
    """Why an edit has no place."""

    why: str


@dataclass(frozen=True)
class Placed:
    """An edit that has its place."""

    how: Outcome
    swaps: tuple[Swap, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Commit:
    """An upstream commit."""

    id: str
    date: str
    author: str
    subject: str

    def __str__(self) -> str:
        return f"{self.id[:12]} {self.subject} ({self.author}, {self.date})"


@dataclass(frozen=True, kw_only=True)
class Piece:
    """What became of one edit of a patch.

    Attributes:
        hunk: its number in the patch, from 1.
        symbol: where it was made.
        line: the same, in the old file, from 1.
        outcome: see `Outcome`.
        note: how, or why not.
        since: for a conflict, the first release that it does not reach.
        base, ours, theirs: for a conflict the three texts: before, upstream's, the overlay's.
        commits: upstream commits that explain it, where history is at hand.
    """

    hunk: int
    symbol: str
    line: int
    outcome: Outcome
    note: str = ""
    since: str = ""
    base: bytes = b""
    ours: bytes = b""
    theirs: bytes = b""
    commits: tuple[Commit, ...] = field(default=(), repr=False)

    def to_json(self) -> dict[str, Any]:
        """For machines; texts only where there are any."""
        texts = {"base": self.base, "upstream": self.ours, "overlay": self.theirs}
        given = {k: v.decode(errors="replace") for k, v in texts.items()}
        return {
            "hunk": self.hunk,
            "symbol": self.symbol,
            "line": self.line,
            "outcome": self.outcome,
            **({"note": self.note} if self.note else {}),
            **({"since": self.since} if self.since else {}),
            **(given if self.outcome == "conflict" else {}),
            **({"commits": [vars(c) for c in self.commits]} if self.commits else {}),
        }
