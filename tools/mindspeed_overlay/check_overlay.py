"""The checks of one overlay on one release that go beyond applying: lint, and unread drift."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mindspeed_overlay.apply import Landing
from mindspeed_overlay.build import Patched
from mindspeed_overlay.drift.reviewed import read_reviewed
from mindspeed_overlay.drift.survey import find_unreviewed, list_uses, report_unreviewed
from mindspeed_overlay.drift.symbols import Symbols
from mindspeed_overlay.errors import ApplyError, OverlayError, Problem
from mindspeed_overlay.lint import Overlap, find_overlaps, lint_patch, lint_sets, report_overlaps
from mindspeed_overlay.lint_copies import CopyFinder, lint_copies
from mindspeed_overlay.lint_operators import lint_operators
from mindspeed_overlay.overlay import Overlay, OverlaySet
from mindspeed_overlay.patch import parse_patch
from mindspeed_overlay.plan import Plan
from mindspeed_overlay.tree import Files


@dataclass(frozen=True)
class Examiner:
    """Looks at overlays on one release; what it learns of the release is kept."""

    overlays: OverlaySet
    tag: str
    order: tuple[str, ...]
    symbols: Symbols
    copies: CopyFinder

    @classmethod
    def of(
        cls, overlays: OverlaySet, tag: str, order: tuple[str, ...], pristine: Files
    ) -> "Examiner":
        """For a release with these pristine files."""
        return cls(overlays, tag, order, Symbols(pristine), CopyFinder(pristine))

    def lint(self, overlay: Overlay) -> Iterator[Problem]:
        """E430 to E432, E434 and E435. (Unused sets are told once, on the first release served.)"""
        for name, data in overlay.patches_for(self.tag, self.order).items():
            try:
                yield from lint_patch(parse_patch(data, name=name), overlay=overlay.id)
            except ApplyError:
                continue  # the header check has told
        served = [tag for tag in self.order if overlay.serves(tag, self.order)]
        if self.tag == served[0]:
            yield from lint_sets(overlay, self.order)
        files = overlay.files_for(self.tag, self.order)
        yield from lint_copies(self.copies, files, overlay=overlay.id)
        yield from lint_operators(files, overlay=overlay.id, floor=overlay.torch_npu)

    def find_drift(self, overlay: Overlay, plan: Plan, patched: Patched) -> list[Problem]:
        """E610 and E611: upstream symbols in a state that nobody has recorded as read."""
        try:
            reviewed = read_reviewed(overlay.folder)
        except OverlayError as error:
            return list(error.problems)
        uses = list_uses(plan, overlay.id, patched, self.symbols.files)
        found = find_unreviewed(uses, self.symbols, reviewed, tag=self.tag, order=self.order)
        return report_unreviewed(
            found, overlay=overlay.id, release=self.tag, recorded=reviewed is not None
        )

    def find_overlaps(
        self, landings: list[tuple[str, Landing]]
    ) -> tuple[list[Overlap], list[Problem]]:
        """Overlays that edit one symbol, and E433 for those that edit one place unknowingly."""
        overlaps = find_overlaps(landings, self.symbols.files)
        return overlaps, report_overlaps(overlaps, list_requirements(self.overlays))


def list_requirements(overlays: OverlaySet) -> Mapping[str, set[str]]:
    """Each overlay's id to all that it requires, directly or not."""
    found: dict[str, set[str]] = {}
    for overlay in overlays.overlays:  # in series order, so what is required comes first
        direct = set(overlay.requires)
        found[overlay.id] = direct.union(*(found.get(name, set()) for name in direct))
    return found
