"""What became of upstream symbols from one release to another."""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from mindspeed_overlay.drift.symbols import Successor, Symbols
from mindspeed_overlay.drift.uses import Use
from mindspeed_overlay.fingerprint import Fingerprint

Kind = Literal["same", "body changed", "signature changed", "moved", "gone"]
KINDS: tuple[Kind, ...] = ("same", "body changed", "signature changed", "moved", "gone")


@dataclass(frozen=True)
class Change:
    """What became of one symbol.

    Attributes:
        old: its state before; None where it was not there.
        new: its state after; None where it is gone.
        successors: of one that is gone, where it may be now; it counts as moved where the first
            of them is certain.
        path: where it was.
        line: its line after, or before where it is gone.
    """

    use: Use
    kind: Kind
    old: Fingerprint | None
    new: Fingerprint | None
    successors: tuple[Successor, ...] = ()
    path: str = ""
    line: int = 0

    def to_json(self) -> dict[str, Any]:
        """For machines."""
        return {
            "symbol": self.use.symbol,
            "how": self.use.how,
            "kind": self.kind,
            "path": self.path,
            "line": self.line,
            "successors": [
                {"symbol": s.symbol, "similarity": s.similarity} for s in self.successors
            ],
        }


def compare_uses(uses: Iterable[Use], old: Symbols, new: Symbols) -> list[Change]:
    """What became of each symbol; those that neither side has are left out."""
    found = (_compare(use, old, new) for use in uses)
    return [change for change in found if change.old or change.new]


def _compare(use: Use, old: Symbols, new: Symbols) -> Change:
    before, after = old.state_of(use), new.state_of(use)
    successors: tuple[Successor, ...] = ()
    if before is not None and after is None:
        successors = tuple(new.find_successors(use, old))
    kind = _classify(before, after, successors)
    there = new if after is not None else old
    _, line = there.source_of(use.module, use.qualname) if use.qualname else ("", 0)
    return Change(use, kind, before, after, successors, there.path_of(use.module), line)


def _classify(
    before: Fingerprint | None, after: Fingerprint | None, successors: tuple[Successor, ...]
) -> Kind:
    if after is None:
        return "moved" if successors and successors[0].is_certain else "gone"
    if before is None or after.signature != before.signature:
        return "signature changed"
    return "same" if after.body == before.body else "body changed"


def diff_change(change: Change, old: Symbols, new: Symbols, *, tags: tuple[str, str]) -> str:
    """The unified diff of a symbol's source, into its successor where it has moved."""
    use = change.use
    before, first = old.source_of(use.module, use.qualname or "<module>")
    module, qualname = use.module, use.qualname or "<module>"
    if change.new is None and change.successors:
        module, _, name = change.successors[0].symbol.partition(":")
        qualname = name or "<module>"
    after, second = new.source_of(module, qualname)
    return "".join(
        difflib.unified_diff(
            before.splitlines(keepends=True),
            after.splitlines(keepends=True),
            f"{tags[0]}/{old.path_of(use.module)}:{first}",
            f"{tags[1]}/{new.path_of(module)}:{second}",
        )
    )
