"""A port from beginning to end, in memory: choose, carry, gate. Writes nothing."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mindspeed_overlay.build import gate_files, patch_files
from mindspeed_overlay.errors import OverlayError, Problem
from mindspeed_overlay.overlay import Overlay, OverlaySet
from mindspeed_overlay.pins import Pins
from mindspeed_overlay.plan import Selection, make_plan
from mindspeed_overlay.port.model import Piece
from mindspeed_overlay.port.steps import Resolutions, Steps
from mindspeed_overlay.port.threads import OverlayResult, PatchResult
from mindspeed_overlay.port.trees import Tree

Report = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Job:
    """What to carry.

    Attributes:
        overlays: the whole set.
        pins: the releases in order; others than pinned ones are among them where they take part.
        trees: the releases to step through, oldest first; the last one is the new release.
        ids: the overlays to carry; empty for all that serve the new release.
        first: the tag to start from; empty for the newest one that an overlay is known to serve.
        again: carry overlays anew that have a form for the new release, and replace it.
        skip: overlays to leave out.
        resolutions, met: how a person decided, as in `Steps`.
    """

    overlays: OverlaySet
    pins: Pins
    trees: Sequence[Tree]
    ids: tuple[str, ...] = ()
    first: str = ""
    again: bool = False
    skip: tuple[str, ...] = ()
    resolutions: Resolutions = field(default_factory=dict)
    met: Mapping[tuple[str, str], str] = field(default_factory=dict)
    today: str = ""

    @property
    def order(self) -> tuple[str, ...]:
        """All tags, oldest first."""
        return tuple(release.tag for release in self.pins.releases)

    @property
    def new(self) -> Tree:
        """The release to carry to."""
        return self.trees[-1]


@dataclass(frozen=True, kw_only=True)
class Ported:
    """The outcome of a job, by overlay in series order."""

    job: Job
    overlays: tuple[OverlayResult, ...]
    not_claimed: tuple[str, ...] = ()

    @property
    def open(self) -> tuple[OverlayResult, ...]:
        """Overlays that a person has to decide on."""
        return tuple(o for o in self.overlays if o.is_open)

    @property
    def patches(self) -> list[PatchResult]:
        """All patches of all overlays."""
        return [patch for overlay in self.overlays for patch in overlay.patches]


def run_port(job: Job, *, report: Report = lambda _sentence: None) -> Ported:
    """Carry overlays to the last tree of a job, and gate what came of it.

    Raises:
        OverlayError: an overlay is unknown, or does not fit the release it starts from.
    """
    chosen, not_claimed = _choose(job)
    needed = _with_requirements(job, chosen)
    starts = {o.id: _find_start(job, o) for o in needed}
    steps = Steps(
        overlays=needed,
        trees=job.trees,
        starts=starts,
        sets=lambda overlay, tag: overlay.patches_for(tag, job.order),
        resolutions=job.resolutions,
        met=job.met,
        today=job.today,
        report=report,
    )
    found = steps.run()
    results = [
        _conclude(job, overlay, found[overlay.id], job.trees[starts[overlay.id]].tag)
        for overlay in needed
        if overlay in chosen
    ]
    report("checking the result")
    return Ported(job=job, overlays=tuple(_gate(job, results)), not_claimed=tuple(not_claimed))


def _choose(job: Job) -> tuple[list[Overlay], list[str]]:
    tag = job.new.tag
    for name in (*job.ids, *job.skip):
        job.overlays.get(name)
    chosen, not_claimed = [], []
    for overlay in job.overlays.overlays:
        if overlay.id in job.skip or (job.ids and overlay.id not in job.ids):
            continue
        if overlay.serves(tag, job.order) or job.ids:
            chosen.append(overlay)
        else:
            not_claimed.append(overlay.id)
    return chosen, not_claimed


def _with_requirements(job: Job, chosen: Sequence[Overlay]) -> list[Overlay]:
    wanted = {overlay.id for overlay in chosen}
    waiting = list(chosen)
    while waiting:
        for name in waiting.pop().requires:
            if name not in wanted:
                wanted.add(name)
                waiting.append(job.overlays.get(name))
    return [o for o in job.overlays.overlays if o.id in wanted]


def _find_start(job: Job, overlay: Overlay) -> int:
    """The newest tree before the last one that the overlay is known to serve."""
    tags = [tree.tag for tree in job.trees]
    if job.first:
        return tags.index(job.first)
    for index in range(len(tags) - 2, -1, -1):
        data = overlay.patches_for(tags[index], job.order).values()
        if any(f"Base-Blob: {tags[index]} ".encode() in patch for patch in data):
            return index
    return max(len(tags) - 2, 0)


def _conclude(
    job: Job, overlay: Overlay, patches: Sequence[PatchResult], start: str
) -> OverlayResult:
    since = overlay.patch_since(start, job.order)
    has_own = overlay.patch_since(job.new.tag, job.order) == job.new.tag
    exact = all(p.outcome in ("exact", "offset") for p in patches)
    return OverlayResult(
        overlay=overlay.id,
        since=since,
        patches=tuple(patches),
        kept=has_own and not job.again and start != job.new.tag,
        still_serves=exact,
    )


def _wait(job: Job, result: OverlayResult, results: Sequence[OverlayResult]) -> OverlayResult:
    """An overlay can't be gated before those that it requires, nor be left with nothing."""
    opened = {r.overlay for r in results if r.is_open}
    needed = [o.id for o in _with_requirements(job, [job.overlays.get(result.overlay)])]
    waiting = [name for name in needed if name in opened and name != result.overlay]
    problems = [f"waits for {name}, which it requires" for name in waiting]
    dropped = [p for p in result.patches if p.outcome == "dropped"]
    if dropped and not result.kept and not result.forms():
        problems.append("nothing that it edits is left; bound its `releases`")
    return replace(result, problems=(*result.problems, *problems))


def with_forms(job: Job, results: Iterable[OverlayResult], *, kept: bool = True) -> OverlaySet:
    """The overlay set with the carried forms in place of those that serve the new release."""
    from mindspeed_overlay.patch import name_patch, serialize_patch

    tag = job.new.tag
    forms = {
        r.overlay: {name_patch(t): serialize_patch(p) for t, p in r.forms().items()}
        for r in results
        if not (kept and r.kept)
    }
    overlays = tuple(
        replace(o, releases="", patch_sets={**o.patch_sets, tag: forms[o.id]})
        if o.id in forms
        else o
        for o in job.overlays.overlays
    )
    return OverlaySet(overlays, job.overlays.revision)


def _gate(job: Job, results: list[OverlayResult]) -> list[OverlayResult]:
    """Gate all carried overlays together, then each that was merged alone."""
    results = [_wait(job, result, results) for result in results]
    ready = [r.overlay for r in results if not r.is_open]
    found: dict[str, list[Problem]] = {}
    if not ready:
        return results
    overlays = with_forms(job, [r for r in results if r.overlay in ready])
    merged = [
        r.overlay
        for r in results
        if r.overlay in ready and not r.kept and r.outcome not in ("exact", "offset")
    ]
    for features in [tuple(ready), *((name,) for name in merged if len(ready) > 1)]:
        for problem in check_selection(job, overlays, features):
            for name in problem.overlay.split(", "):
                found.setdefault(name, []).append(problem)
    return [_blame(r, list(dict.fromkeys(found.get(r.overlay, ())))) for r in results]


def check_selection(job: Job, overlays: OverlaySet, features: tuple[str, ...]) -> list[Problem]:
    """What is wrong with some overlays together on the new release."""
    tree = job.new
    try:
        plan = make_plan(
            overlays,
            _with_release(job.pins, tree),
            tree.release,
            selection=Selection(features=features),
            tree=tree.kind,
        )
        gate_files(plan, tree.files, patch_files(plan, tree.files))
    except OverlayError as error:
        return list(error.problems)
    return []


def _with_release(pins: Pins, tree: Tree) -> Pins:
    return (
        pins
        if any(r.tag == tree.tag for r in pins.releases)
        else replace(pins, releases=(*pins.releases, tree.release))
    )


def _blame(result: OverlayResult, problems: Sequence[Problem]) -> OverlayResult:
    """Turn what the gate found into conflicts of the patches that it lies in."""
    if not problems or result.kept:
        return result
    patches = list(result.patches)
    rest = []
    for problem in problems:
        at = next((k for k, p in enumerate(patches) if p.target == problem.path), None)
        if at is None:
            rest.append(f"{problem.code}: {problem.message}")
            continue
        note = f"the merge is wrong: {problem.code} {problem.message}"
        piece = Piece(
            hunk=problem.hunk,
            symbol=problem.symbol,
            line=problem.line,
            outcome="conflict",
            note=note,
            since=patches[at].base_tag,
        )
        patches[at] = patches[at].with_piece(piece)
    return replace(result, patches=tuple(patches), problems=tuple(rest), still_serves=False)


def summarize(ported: Ported) -> dict[str, Any]:
    """Numbers of patches by outcome."""
    counts: dict[str, int] = {}
    for patch in ported.patches:
        key = "unchecked" if patch.unchecked else patch.outcome
        counts[key] = counts.get(key, 0) + 1
    return counts
