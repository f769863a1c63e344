"""From a request to a job: which releases take part, and where their files come from."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mindspeed_overlay.drift.survey import Survey
from mindspeed_overlay.drift.symbols import Symbols
from mindspeed_overlay.errors import OverlayError, Problem, UsageError
from mindspeed_overlay.overlay import load_overlays
from mindspeed_overlay.pins import Pins, Release
from mindspeed_overlay.port.engine import Job
from mindspeed_overlay.port.state import Request
from mindspeed_overlay.port.trees import (
    Tree,
    choose_steps,
    list_tags_between,
    open_commit,
    open_pinned,
    read_version,
)

if TYPE_CHECKING:
    from mindspeed_overlay.cli import Workspace


def open_job(workspace: "Workspace", request: Request) -> Job:
    """The job of a request.

    Raises:
        SourceError: E301, a tag is not pinned and the source has no other commits.
        UsageError: E221, --to is older than --from.
    """
    names = [name for name in (request.first, request.last) if name]
    repository = find_repository(request.spec)
    pinned = all(_is_pinned(workspace.pins, name) for name in names)
    if pinned or repository is None:
        last = workspace.pins.get(request.last).tag
        first = workspace.pins.get(request.first).tag if request.first else ""
        oldest = first or workspace.pins.releases[0].tag
        releases = choose_steps(workspace.pins, oldest, last)
        if len(releases) < 2 and not first:
            message = f"there is no release before {last} to carry from"
            raise UsageError(Problem(code="E221", message=message))
        trees = [open_pinned(r, spec=request.spec, offline=request.offline) for r in releases]
        return _make_job(request, workspace, workspace.pins, trees, first)
    if not request.first:
        message = f"{request.last} is not pinned: say what to carry from with --from"
        raise UsageError(Problem(code="E220", message=message))
    steps = list_tags_between(repository, request.first, request.last)
    trees = [open_commit(repository, n) for n in (request.first, *steps, request.last)]
    pins = extend_pins(workspace.pins, [tree.release for tree in trees])
    return _make_job(request, workspace, pins, trees, request.first)


def find_repository(spec: str) -> Path | None:
    """The local repository of a `git:PATH` source."""
    kind, _, where = spec.partition(":")
    place = Path(where).expanduser()
    return place if kind == "git" and where and place.is_dir() else None


def extend_pins(pins: Pins, releases: list[Release]) -> Pins:
    """The pinned releases with others among them, in the order of their versions."""
    known = {release.tag: release for release in (*pins.releases, *releases)}
    places = {tag: n for n, tag in enumerate(known)}
    ordered = sorted(known.values(), key=lambda r: (*read_version(r.tag), places[r.tag]))
    return replace(pins, releases=tuple(ordered))


def open_survey(
    workspace: "Workspace", names: Sequence[str], *, spec: str, offline: bool
) -> Survey:
    """What `drift` looks at; `names` that no pin has are commits of the local git source."""
    repository = find_repository(spec)
    others = [name for name in dict.fromkeys(names) if not _is_pinned(workspace.pins, name)]
    if repository is None or not others:
        return Survey(workspace.overlays, workspace.pins, spec, offline)
    trees = [open_commit(repository, name) for name in others]
    pins = extend_pins(workspace.pins, [tree.release for tree in trees])
    tags = tuple(release.tag for release in pins.releases)
    overlays = load_overlays(workspace.overlays_folder, tags=tags)
    opened = {tree.tag: Symbols(tree.files) for tree in trees}
    return Survey(overlays, pins, spec, offline, opened)


def _is_pinned(pins: Pins, name: str) -> bool:
    try:
        pins.get(name)
    except OverlayError:
        return False
    return True


def _make_job(
    request: Request, workspace: "Workspace", pins: Pins, trees: list[Tree], first: str
) -> Job:
    tags = tuple(release.tag for release in pins.releases)
    return Job(
        overlays=load_overlays(workspace.overlays_folder, tags=tags),
        pins=pins,
        trees=trees,
        ids=request.ids,
        first=first,
        again=request.again,
        skip=request.skip,
    )


def open_base(workspace: "Workspace", name: str, *, spec: str, offline: bool) -> Tree:
    """The release that foreign patches were made for; the default one for an empty name."""
    pins = workspace.pins
    repository = find_repository(spec)
    if not name:
        return open_pinned(pins.default, spec=spec, offline=offline)
    if _is_pinned(pins, name) and repository is None:
        return open_pinned(pins.get(name), spec=spec, offline=offline)
    if repository is None:
        pins.get(name)
        raise AssertionError
    return open_commit(repository, name)


def check_id(overlay_id: str) -> None:
    """Refuse what is no overlay id (E202)."""
    part = r"[a-z0-9]+(-[a-z0-9]+)*"
    if not re.fullmatch(f"{part}/{part}", overlay_id):
        message = f"{overlay_id!r} is not `<family>/<feature>` in lower case"
        raise UsageError(Problem(code="E202", message=message))
