"""The releases that one form of an overlay serves, and the files that its patches meet on each."""

from collections.abc import Mapping
from dataclasses import dataclass

from mindspeed_overlay.apply import Landing, land_patches
from mindspeed_overlay.build import parse_plan
from mindspeed_overlay.drift.survey import Survey
from mindspeed_overlay.errors import ApplyError, Problem
from mindspeed_overlay.overlay import Overlay
from mindspeed_overlay.patch import Patch
from mindspeed_overlay.pins import Release
from mindspeed_overlay.plan import Selection, make_plan
from mindspeed_overlay.tree import Files


@dataclass(frozen=True)
class Stage:
    """One release as an overlay's patches meet it.

    Attributes:
        pristine: the release's files.
        before: the same with what the overlay requires applied.
        required: how those patches landed.
        skipped: targets of the overlay that this tree does not carry.
    """

    release: Release
    pristine: Files
    before: Files
    required: tuple[Landing, ...]
    skipped: frozenset[str]

    def apply(self, overlay: str, patch: Patch) -> Landing:
        """Apply a patch of the overlay here, as a build does; ApplyError where it does not fit."""
        earlier = [(x.overlay, x.patch) for x in self.required if x.patch.target == patch.target]
        patches = [*earlier, (overlay, patch)]
        return land_patches(self.pristine, patches, release=self.release.tag)[-1]


def list_served(overlay: Overlay, since: str, order: tuple[str, ...]) -> list[str]:
    """The releases that the set `patches/<since>/` serves, oldest first."""
    return [
        tag
        for tag in order
        if overlay.serves(tag, order) and overlay.patch_since(tag, order) == since
    ]


def open_stage(survey: Survey, overlay: Overlay, tag: str) -> Stage:
    """Apply what an overlay requires to a release.

    Raises:
        OverlayError: its requirements do not apply, or the source is not to be had.
    """
    release = survey.pins.get(tag)
    pristine = survey.symbols(tag).files
    selection = Selection(features=(overlay.id,))
    plan = make_plan(survey.overlays, survey.pins, release, selection=selection, tree=survey.tree)
    patches = [(owner, patch) for owner, patch in parse_plan(plan) if owner != overlay.id]
    landings = land_patches(pristine, patches, release=tag)
    before = dict(pristine)
    for landing in landings:
        before[landing.patch.target] = landing.applied.data
    before |= {path: data for owner, path, data in plan.files if owner != overlay.id}
    skipped = frozenset(p.target for p in plan.skipped if p.overlay == overlay.id)
    return Stage(release, pristine, before, tuple(landings), skipped)


def collect_stages(survey: Survey, overlay: Overlay, tags: list[str]) -> Mapping[str, Stage]:
    """The stages of several releases; all problems together."""
    stages: dict[str, Stage] = {}
    problems: list[Problem] = []
    for tag in tags:
        try:
            stages[tag] = open_stage(survey, overlay, tag)
        except ApplyError as error:
            problems += error.problems
    if problems:
        raise ApplyError(*problems)
    return stages
