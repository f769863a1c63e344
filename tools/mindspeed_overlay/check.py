"""Check overlays on every release they claim: headers, lint, dry apply with gate, unread drift."""

from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

from mindspeed_overlay.apply import Landing
from mindspeed_overlay.build import gate_files, patch_files
from mindspeed_overlay.check_options import check_options
from mindspeed_overlay.check_overlay import Examiner
from mindspeed_overlay.errors import OverlayError, Problem, SourceError
from mindspeed_overlay.lint import Overlap
from mindspeed_overlay.overlay import Overlay, OverlaySet
from mindspeed_overlay.patch import check_header, parse_patch
from mindspeed_overlay.pins import Pins, Release
from mindspeed_overlay.plan import Selection, make_plan
from mindspeed_overlay.source import open_source
from mindspeed_overlay.tree import git_blob_id


@dataclass(frozen=True)
class Checked:
    """The outcome of one (release, tree) pair."""

    release: str
    tree: str
    selections: int
    """How many were applied and gated: each overlay alone with its requirements, and all."""
    problems: tuple[Problem, ...]
    exit_code: int
    unchecked: str = ""
    """Why this pair could not be looked at; empty if it was."""
    overlaps: tuple[Overlap, ...] = ()
    """Overlays that edit one symbol: no fault, and where to look when both change."""


def check_releases(
    overlays: OverlaySet,
    pins: Pins,
    releases: Iterable[Release],
    *,
    spec: str = "pypi",
    tree: str = "core",
    offline: bool = False,
    jobs: int = 2,
) -> list[Checked]:
    """Check every overlay on each release, releases side by side."""
    work = partial(_check_release, overlays, pins, spec=spec, tree=tree, offline=offline)
    chosen = list(releases)
    if jobs == 1 or len(chosen) == 1:
        return [work(release) for release in chosen]
    with ProcessPoolExecutor(max_workers=jobs) as pool:
        return list(pool.map(work, chosen))


def _check_release(
    overlays: OverlaySet, pins: Pins, release: Release, *, spec: str, tree: str, offline: bool
) -> Checked:
    order = tuple(r.tag for r in pins.releases)
    try:
        source = open_source(release, spec=spec, tree=tree, offline=offline, python=_floor(release))
    except SourceError as error:
        return Checked(release.tag, tree, 0, error.problems, error.exit_code)
    except OverlayError as error:
        return Checked(release.tag, tree, 0, (), 0, unchecked=str(error.problems[0].message))
    served = [o for o in overlays.overlays if o.serves(release.tag, order)]
    examiner = Examiner.of(overlays, release.tag, order, source.files)
    problems: list[Problem] = []
    codes: list[int] = []
    for overlay in served:
        found = check_headers(overlay, release, order, source.files)
        found += check_options(overlay, release.tag, order, source.files)
        found += examiner.lint(overlay)
        problems += found
        codes += [4] if found else []
    landings: list[tuple[str, Landing]] = []
    selections = [Selection(features=(o.id,)) for o in served] + [Selection()]
    for overlay_alone, selection in zip((*served, None), selections, strict=True):
        try:
            plan = make_plan(overlays, pins, release, selection=selection, tree=tree)
            patched = patch_files(plan, source.files)
            gate_files(plan, source.files, patched)
        except OverlayError as error:
            problems += error.problems
            codes.append(error.exit_code)
            continue
        if overlay_alone is not None:
            drift = examiner.find_drift(overlay_alone, plan, patched)
            problems += drift
            codes += [6] if drift else []
            own = [x for x in patched.landings if x.overlay == overlay_alone.id]
            landings += ((overlay_alone.id, landing) for landing in own)
    overlaps, unknowing = examiner.find_overlaps(landings)
    problems += unknowing
    codes += [4] if unknowing else []
    unique = tuple(dict.fromkeys(replace(p) for p in problems))
    # A patch that does not apply (5) explains more than what follows from it.
    code = 5 if 5 in codes else min(codes, default=0)
    return Checked(release.tag, tree, len(selections), unique, code, overlaps=tuple(overlaps))


def _floor(release: Release) -> str:
    """A Python that has a wheel: what runs the tool may be older than the release's floor."""
    return release.python.removeprefix(">=")


def check_headers(
    overlay: Overlay, release: Release, order: tuple[str, ...], files: Mapping[str, bytes]
) -> list[Problem]:
    """Check the headers of the patches that serve a release; `files` are its pristine ones."""
    since = overlay.patch_since(release.tag, order)
    served = [
        tag
        for tag in order
        if overlay.serves(tag, order) and overlay.patch_since(tag, order) == since
    ]
    problems: list[Problem] = []
    for name, data in overlay.patches_for(release.tag, order).items():
        try:
            patch = parse_patch(data, name=name)
        except OverlayError as error:
            problems += [replace(p, overlay=overlay.id) for p in error.problems]
            continue
        problems += check_header(patch, overlay=overlay.id, releases=served)
        base = files.get(patch.target)
        if base is not None and patch.base_blobs.get(release.tag) != (blob := git_blob_id(base)):
            message = f"{name}: Base-Blob of {release.tag} must be {blob}"
            hint = f"edit overlays/{overlay.id}/patches/{since}/{name}"
            problems.append(
                Problem(code="E420", overlay=overlay.id, patch=name, message=message, hint=hint)
            )
    return problems
