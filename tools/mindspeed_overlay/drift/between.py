"""An overlay's symbols between two releases, and which of the changes were read."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from mindspeed_overlay.drift.changes import KINDS, Change, compare_uses, diff_change
from mindspeed_overlay.drift.reviewed import Reviewed, read_reviewed, write_reviewed
from mindspeed_overlay.drift.survey import Survey
from mindspeed_overlay.errors import Problem
from mindspeed_overlay.overlay import Overlay


@dataclass(frozen=True)
class Between:
    """One overlay between two releases.

    Attributes:
        changes: every symbol that it uses on the older one, what stayed the same included.
        unread: symbols whose change nobody has recorded as read.
        problems: why the overlay does not apply to one of the two.
    """

    overlay: str
    since: str
    to: str
    changes: tuple[Change, ...]
    unread: frozenset[str]
    problems: tuple[Problem, ...]

    @property
    def counts(self) -> dict[str, int]:
        """How many symbols of each kind there are."""
        counter = Counter(change.kind for change in self.changes)
        return {kind: counter[kind] for kind in KINDS}

    def to_json(self, survey: Survey, *, diff: bool) -> dict[str, Any]:
        """For machines; with `diff`, each change's own and its upstream commits."""
        rows = []
        for change in self.changes:
            row = {**change.to_json(), "reviewed": change.use.symbol not in self.unread}
            if diff and change.kind != "same":
                row["diff"] = self._diff(survey, change)
                row["commits"] = survey.commits_of(change.use, self.since, self.to)
            rows.append(row)
        problems = [p.to_json() for p in self.problems]
        return {
            "overlay": self.overlay,
            "counts": self.counts,
            "symbols": rows,
            "problems": problems,
        }

    def _diff(self, survey: Survey, change: Change) -> str:
        tags = (self.since, self.to)
        return diff_change(change, *map(survey.symbols, tags), tags=tags)

    def describe(self, survey: Survey, *, diff: bool) -> str:
        """For people: what is not the same."""
        counts = ", ".join(f"{count} {kind}" for kind, count in self.counts.items() if count)
        lines = [f"{self.overlay}: {counts or 'uses no upstream symbol'}"]
        for change in self.changes:
            if change.kind == "same":
                continue
            unread = "to review" if change.use.symbol in self.unread else "reviewed"
            place = f"{change.path}:{change.line}"
            lines.append(
                f"  {change.kind}: {change.use.symbol} ({change.use.how}) {place} {unread}"
            )
            lines += [f"    now {s.symbol}? ({s.similarity:.0%} alike)" for s in change.successors]
            if diff:
                commits = survey.commits_of(change.use, self.since, self.to)
                lines += [f"    upstream {commit}" for commit in commits]
                lines.append(self._diff(survey, change))
        lines += [f"  {line}" for p in self.problems for line in str(p).splitlines()]
        return "\n".join(lines)


def compare_releases(
    survey: Survey, overlay: Overlay, *, since: str, to: str, accept: bool
) -> Between:
    """Compare what an overlay uses on `since` with what is there on `to`.

    A change that the overlay's own form for `to` no longer meets (it was ported) needs no review.

    Args:
        accept: record the states of `to` as read, as far as the overlay uses them there.
    """
    pins, order = survey.pins, survey.order
    old, new = survey.symbols(since), survey.symbols(to)
    before = survey.look(overlay, pins.get(since))
    changes = compare_uses(before.uses, old, new)
    after = survey.look(overlay, pins.get(to)) if overlay.serves(to, order) else None
    ported = after is not None and not after.problems
    used_there = {use.symbol for use in after.uses} if after is not None and ported else None
    reviewed = read_reviewed(overlay.folder) or Reviewed({})
    if accept and after is not None and ported:
        states = [(use.symbol, new.state_of(use)) for use in after.uses]
        known = [(symbol, state) for symbol, state in states if state is not None]
        reviewed = reviewed.with_states(to, known, order)
        write_reviewed(overlay.folder, reviewed)
    unread = {
        change.use.symbol
        for change in changes
        if change.kind != "same"
        and (used_there is None or change.use.symbol in used_there)
        and not (change.new is not None and reviewed.covers(change.use.symbol, change.new))
    }
    problems = (*before.problems, *(after.problems if after else ()))
    return Between(overlay.id, since, to, tuple(changes), frozenset(unread), problems)
