"""Find the state of every overlay on every release; what was found is kept by content.

A cell's key is the hash of everything that decides it: the release's pinned bytes, the overlay and
what it requires, its headers, its record of reviews, and the tool. So a warm run reads small files
only, and a stale answer is impossible.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path

from mindspeed_overlay.build import gate_files, patch_files
from mindspeed_overlay.check_overlay import list_requirements
from mindspeed_overlay.drift.reviewed import REVIEWED, read_reviewed
from mindspeed_overlay.drift.survey import Survey, find_unreviewed, list_uses
from mindspeed_overlay.errors import DefinitionError, GateError, OverlayError, Problem
from mindspeed_overlay.overlay import Overlay
from mindspeed_overlay.pins import Release
from mindspeed_overlay.plan import Plan, Selection, make_plan
from mindspeed_overlay.source.cache import explain_write_errors
from mindspeed_overlay.staging import write_atomically
from mindspeed_overlay.status.cell import Cell, Matrix, State, read_cell
from mindspeed_overlay.status.results import Outcome
from mindspeed_overlay.tree import sha256

_ABSORBED = re.compile(
    r"(?:absorbed|merged|accepted|contained)\b.*?\b(core_v[\w.]+)", re.IGNORECASE
)
_UNCHECKED = (3, 8)  # exit codes: the source is not to be had


@dataclass(frozen=True)
class StatusFinder:
    """Finds cells, with a cache."""

    survey: Survey
    cache: Path
    tested: Mapping[tuple[str, str], Outcome]

    def find_matrix(self, overlays: Iterable[Overlay], releases: Iterable[Release]) -> Matrix:
        """The cells of some overlays on some releases."""
        chosen, tags = list(overlays), list(releases)
        cells = {(o.id, r.tag): self.find_cell(o, r) for r in tags for o in chosen}
        shown = tuple((o.id, o.summary) for o in chosen)
        return Matrix(shown, tuple(r.tag for r in tags), cells)

    def find_cell(self, overlay: Overlay, release: Release) -> Cell:
        """The state of one overlay on one release."""
        order = self.survey.order
        if not overlay.serves(release.tag, order):
            return _explain_absence(overlay, release.tag, order)
        entry = self.cache / self._key(overlay, release)
        try:
            cell = read_cell(json.loads(entry.read_bytes()))
        except (OSError, ValueError, TypeError, KeyError):
            try:
                cell = self._look(overlay, release, self._plan(overlay, release))
            except DefinitionError as error:
                what = "cannot be selected"
                cell = _from_problems(overlay, release.tag, error.problems, "", what)
            if cell.state != "not checked":
                with explain_write_errors(self.cache):
                    self.cache.mkdir(parents=True, exist_ok=True)
                    write_atomically(entry, json.dumps(cell.to_json()).encode())
        tested = self.tested.get((overlay.id, release.tag))
        if tested is None or cell.state not in ("applies", "ported", "native"):
            return cell
        return _verify(cell, tested, self._plan(overlay, release))

    def _plan(self, overlay: Overlay, release: Release) -> Plan:
        survey = self.survey
        selection = Selection(features=(overlay.id,))
        return make_plan(
            survey.overlays, survey.pins, release, selection=selection, tree=survey.tree
        )

    def _key(self, overlay: Overlay, release: Release) -> str:
        survey = self.survey
        needed = {overlay.id, *self._requirements.get(overlay.id, ())}
        known = overlay.folder / REVIEWED
        parts = [
            f"{_digest_tool()} {survey.spec} {survey.order}",
            f"{release.tag} {release.source_digest} {release.tree_digest} {release.other_digests}",
            self._options,
            *(f"{name} {self._digests[name]}" for name in sorted(needed)),
            sha256(known.read_bytes()) if known.is_file() else "-",
            overlay.id,
        ]
        return sha256("\n".join(parts).encode())

    @cached_property
    def _requirements(self) -> Mapping[str, set[str]]:
        return list_requirements(self.survey.overlays)

    @cached_property
    def _options(self) -> str:
        """The options of all overlays: generated files may tell of each."""
        return sha256(repr([(o.id, o.options) for o in self.survey.overlays.overlays]).encode())

    @cached_property
    def _digests(self) -> Mapping[str, str]:
        """Everything of each overlay that is not a review."""
        return {o.id: _digest_overlay(o) for o in self.survey.overlays.overlays}

    def _look(self, overlay: Overlay, release: Release, plan: Plan) -> Cell:
        order = self.survey.order
        since = overlay.patch_since(release.tag, order)
        try:
            symbols = self.survey.symbols(release.tag)
        except OverlayError as error:
            if error.exit_code not in _UNCHECKED:
                raise
            why = error.problems[0].message
            return Cell(overlay.id, release.tag, "not checked", why, (), since)
        try:
            patched = patch_files(plan, symbols.files)
            gate_files(plan, symbols.files, patched)
        except GateError as error:
            what = "applies and breaks what the gate checks"
            return _from_problems(overlay, release.tag, error.problems, since, what)
        except OverlayError as error:
            own = [p for p in error.problems if p.overlay == overlay.id]
            if own and {p.code for p in error.problems} == {"E505"}:
                what = "upstream has the change already"
                return _from_problems(
                    overlay, release.tag, error.problems, since, what, state="absorbed"
                )
            what = "does not apply"
            return _from_problems(overlay, release.tag, error.problems, since, what)
        uses = list_uses(plan, overlay.id, patched, symbols.files)
        reviewed = read_reviewed(overlay.folder)
        unread = find_unreviewed(uses, symbols, reviewed, tag=release.tag, order=order)
        skipped = [
            f"not looked at, this tree does not carry it: {p.target}"
            for p in plan.skipped
            if p.overlay == overlay.id
        ]
        if unread:
            lines = [f"{u.what}: {u.use.symbol} ({u.use.how}) {u.path}:{u.line}" for u in unread]
            what = f"{len(unread)} upstream symbols to review"
            return Cell(overlay.id, release.tag, "drift", what, (*lines, *skipped), since)
        return _describe_success(overlay, release.tag, order, since, tuple(skipped))


@cache
def _digest_tool() -> str:
    """The tool's own sources: another gate or fingerprint may judge otherwise."""
    root = Path(__file__).parents[1]
    return sha256(b"".join(path.read_bytes() for path in sorted(root.rglob("*.py"))))


def _digest_overlay(overlay: Overlay) -> str:
    fields = {k: v for k, v in overlay.__dict__.items() if not k.endswith("_sets")}
    fields.pop("folder")
    lines = [repr(sorted(fields.items()))]
    for kind in (overlay.file_sets, overlay.patch_sets):
        for since, files in sorted(kind.items()):
            lines += (f"{since} {path} {sha256(data)}" for path, data in sorted(files.items()))
        lines.append("")
    return sha256("\n".join(lines).encode())


def _verify(cell: Cell, tested: Outcome, plan: Plan) -> Cell:
    """The cell, verified if the tests ran on exactly this."""
    numbers = f"{tested.passed} tests passed, {tested.failed} failed on this release"
    if tested.digest != digest_of(plan):
        return replace(cell, details=(*cell.details, f"{numbers}, with other contents than now"))
    if tested.failed or not tested.passed:
        return replace(cell, details=(*cell.details, numbers))
    details = (cell.reason, *cell.details)
    return Cell(cell.overlay, cell.release, "verified", numbers, details, cell.since)


def digest_of(plan: Plan) -> str:
    """What test results are bound to: the overlay's and its requirements' contents."""
    lines = "".join(f"{o.id} {plan.overlay_digest(o.id)}\n" for o in plan.overlays)
    return sha256(lines.encode())


def _from_problems(
    overlay: Overlay,
    tag: str,
    problems: Iterable[Problem],
    since: str,
    what: str,
    *,
    state: State = "conflict",
) -> Cell:
    found = list(problems)
    lines = tuple(line for p in found for line in str(p).splitlines())
    return Cell(overlay.id, tag, state, f"{what}: {found[0].message}", lines, since)


def _explain_absence(overlay: Overlay, tag: str, order: tuple[str, ...]) -> Cell:
    match = _ABSORBED.search(overlay.upstream_status)
    if match and match[1] in order and order.index(tag) >= order.index(match[1]):
        return Cell(overlay.id, tag, "absorbed", f"upstream status: {overlay.upstream_status}")
    return Cell(overlay.id, tag, "not claimed", f"releases: {overlay.releases}")


def _describe_success(
    overlay: Overlay, tag: str, order: tuple[str, ...], since: str, details: tuple[str, ...]
) -> Cell:
    own = [option.flag for option in overlay.options if option.is_upstream(tag, order)]
    if own and len(own) == len(overlay.options) and not overlay.patches_for(tag, order):
        reason = f"upstream owns {', '.join(own)}"
        return Cell(overlay.id, tag, "native", reason, details, since)
    oldest = min(overlay.patch_sets, key=order.index, default="")
    if since in ("", oldest):
        form = f"with its form for {since}" if since else "with new files alone"
        return Cell(overlay.id, tag, "applies", f"applies {form}, through the gate", details, since)
    reason = f"applies with its form since {since}, through the gate"
    return Cell(overlay.id, tag, "ported", reason, details, since)
