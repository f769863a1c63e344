"""All patches of an overlay, or of all overlays, in canonical form."""

from dataclasses import dataclass, replace

from mindspeed_overlay.drift.survey import Survey
from mindspeed_overlay.errors import ApplyError, OverlayError, Problem
from mindspeed_overlay.overlay import Overlay
from mindspeed_overlay.patch import parse_patch
from mindspeed_overlay.refresh.canonical import canonize_patch
from mindspeed_overlay.refresh.forms import collect_stages, list_served


@dataclass(frozen=True)
class Rewrite:
    """A patch file and what it should hold."""

    overlay: str
    since: str
    name: str
    old: bytes
    new: bytes

    @property
    def is_due(self) -> bool:
        """Whether the file is not as it should be."""
        return self.old != self.new


@dataclass(frozen=True)
class Refreshed:
    """What refreshing an overlay gives.

    Attributes:
        unseen: patches whose target this tree does not carry, so nobody looked at them.
    """

    rewrites: tuple[Rewrite, ...]
    unseen: tuple[str, ...]
    problems: tuple[Problem, ...]


def refresh_overlay(survey: Survey, overlay: Overlay) -> Refreshed:
    """Write every patch of an overlay anew, for all releases that each of its sets serves."""
    rewrites: list[Rewrite] = []
    unseen: list[str] = []
    problems: list[Problem] = []
    for since, patches in overlay.patch_sets.items():
        tags = list_served(overlay, since, survey.order)
        if not tags:
            continue  # lint tells of sets that serve nothing
        try:
            stages = collect_stages(survey, overlay, tags)
        except OverlayError as error:
            problems += error.problems
            continue
        for name, data in patches.items():
            try:
                patch = parse_patch(data, name=name)
                if all(patch.target in stage.skipped for stage in stages.values()):
                    unseen.append(f"patches/{since}/{name}")
                    continue
                rewritten = canonize_patch(overlay.id, patch, stages=stages)
            except ApplyError as error:
                problems += [replace(p, overlay=overlay.id) for p in error.problems]
                continue
            rewrites.append(Rewrite(overlay.id, since, name, data, rewritten.data))
    return Refreshed(tuple(rewrites), tuple(unseen), tuple(problems))
