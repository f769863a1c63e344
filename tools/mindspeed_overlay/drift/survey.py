"""Apply overlays to releases and look at the upstream symbols they use there."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mindspeed_overlay.build import Patched, patch_files
from mindspeed_overlay.drift.reviewed import Reviewed
from mindspeed_overlay.drift.symbols import Symbols
from mindspeed_overlay.drift.uses import Use, find_uses
from mindspeed_overlay.errors import OverlayError, Problem
from mindspeed_overlay.fingerprint import Fingerprint
from mindspeed_overlay.overlay import Overlay, OverlaySet
from mindspeed_overlay.pins import Pins, Release
from mindspeed_overlay.plan import Plan, Selection, make_plan
from mindspeed_overlay.source import open_source
from mindspeed_overlay.tree import Files


@dataclass(frozen=True)
class Unreviewed:
    """A symbol whose state on a release nobody has recorded as read.

    Attributes:
        since: the release whose reviewed state is the last before it; "" where there is none.
    """

    use: Use
    state: Fingerprint
    since: str
    what: str
    path: str
    line: int

    def to_json(self) -> dict[str, Any]:
        """For machines."""
        return {
            "symbol": self.use.symbol,
            "how": self.use.how,
            "what": self.what,
            "since": self.since,
            "path": self.path,
            "line": self.line,
        }


@dataclass(frozen=True)
class Surveyed:
    """One overlay on one release.

    Attributes:
        problems: why it does not apply there, so that its uses are not known.
        skipped: targets that this tree does not carry, which nobody has looked at.
    """

    overlay: str
    release: str
    uses: tuple[Use, ...]
    problems: tuple[Problem, ...]
    skipped: tuple[str, ...] = ()


@dataclass
class Survey:
    """Overlays on pinned releases; each release is opened once, and kept in `opened`."""

    overlays: OverlaySet
    pins: Pins
    spec: str = "pypi"
    offline: bool = False
    opened: dict[str, Symbols] = field(default_factory=dict)

    @property
    def order(self) -> tuple[str, ...]:
        """All pinned tags, oldest first."""
        return tuple(release.tag for release in self.pins.releases)

    @property
    def tree(self) -> str:
        """The largest tree that the source has."""
        return "full" if self.spec.startswith("git") else "core"

    def symbols(self, tag: str) -> Symbols:
        """The pristine symbols of a release."""
        if tag not in self.opened:
            release = self.pins.get(tag)
            floor = release.python.removeprefix(">=")
            source = open_source(
                release, spec=self.spec, tree=self.tree, offline=self.offline, python=floor
            )
            self.opened[tag] = Symbols(source.files)
        return self.opened[tag]

    def commits_of(self, use: Use, since: str, to: str) -> list[str]:
        """The upstream commits that changed a symbol; only a clone with history knows them."""
        from mindspeed_overlay.blame_git import list_commits

        _, _, where = self.spec.partition("git:")
        repository = Path(where).expanduser()
        lines = self.symbols(to).lines_of(use.module, use.qualname)
        if not where or not repository.is_dir() or lines is None:
            return []
        old, new = (self.pins.get(tag).commit for tag in (since, to))
        return list_commits(repository, old, new, self.symbols(to).path_of(use.module), lines)

    def look(self, overlay: Overlay, release: Release) -> Surveyed:
        """The symbols that one overlay uses on one release."""
        pristine = self.symbols(release.tag).files
        selection = Selection(features=(overlay.id,))
        try:
            plan = make_plan(self.overlays, self.pins, release, selection=selection, tree=self.tree)
            patched = patch_files(plan, pristine)
        except OverlayError as error:
            return Surveyed(overlay.id, release.tag, (), error.problems)
        uses = list_uses(plan, overlay.id, patched, pristine)
        skipped = tuple(p.target for p in plan.skipped if p.overlay == overlay.id)
        return Surveyed(overlay.id, release.tag, tuple(uses), (), skipped)


def list_uses(plan: Plan, overlay: str, patched: Patched, pristine: Files) -> list[Use]:
    """The upstream symbols that one overlay of a plan uses."""
    own = [path for owner, path, _ in plan.files if owner == overlay]
    return find_uses(overlay, patched, own, pristine)


def find_unreviewed(
    uses: Iterable[Use],
    symbols: Symbols,
    reviewed: Reviewed | None,
    *,
    tag: str,
    order: tuple[str, ...],
) -> list[Unreviewed]:
    """The used symbols that are there, in a state that nobody has recorded as read."""
    known = reviewed or Reviewed({})
    found = []
    for use in uses:
        state = symbols.state_of(use)
        if state is None or known.covers(use.symbol, state):
            continue
        _, line = symbols.source_of(use.module, use.qualname) if use.qualname else ("", 0)
        found.append(
            Unreviewed(
                use=use,
                state=state,
                since=known.last_before(use.symbol, tag, order),
                what=_describe(known, use.symbol, state),
                path=symbols.path_of(use.module),
                line=line,
            )
        )
    return found


def _describe(known: Reviewed, symbol: str, state: Fingerprint) -> str:
    states = [recorded for _, recorded in known.states.get(symbol, ())]
    if not states:
        return "not reviewed"
    same = any(state.signature in ("-", recorded.signature) for recorded in states)
    return "body changed" if same else "signature changed"


def report_unreviewed(
    found: Iterable[Unreviewed], *, overlay: str, release: str, recorded: bool
) -> list[Problem]:
    """One E610 for each unreviewed symbol; one E611 in their place where nothing was recorded."""
    found = list(found)
    accept = f"`mindspeed-overlay drift {overlay} --accept`"
    if not recorded and found:
        message = f"has no reviewed.toml: {len(found)} upstream symbols on {release} to look at"
        hint = f"read `mindspeed-overlay drift {overlay}`, then {accept}"
        return [Problem(code="E611", overlay=overlay, message=message, hint=hint)]
    return [
        Problem(
            code="E610",
            overlay=overlay,
            path=item.path,
            line=item.line,
            symbol=item.use.qualname,
            message=f"{item.use.symbol}, which it {item.use.how}, on {release}: {item.what}"
            + (f" since {item.since}" if item.since else ""),
            hint=f"read `mindspeed-overlay drift {overlay} --diff`, then {accept}",
        )
        for item in found
    ]
