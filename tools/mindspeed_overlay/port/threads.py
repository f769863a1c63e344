"""One patch on its way from release to release, and what came of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from mindspeed_overlay.patch import Patch
from mindspeed_overlay.port.carry import Carried
from mindspeed_overlay.port.model import Outcome, Piece, worst


@dataclass
class Thread:
    """A patch at the last release that it reached.

    Attributes:
        overlay, name: whose, and the patch file it began as.
        patch: its form at `at`.
        at: the tag it stands at.
        base: its target there, as the overlays it requires leave it.
        edited: the same with the patch.
        told: what became of its edits in each step, as (tag, piece), the dull ones left out.
        outcome: the worst so far.
        stuck: the last attempt that failed, and the first tag that one failed at.
        ended: `absorbed` where upstream has all of it now.
    """

    overlay: str
    name: str
    patch: Patch
    at: str
    base: bytes
    edited: bytes
    told: list[tuple[str, Piece]] = field(default_factory=list)
    outcome: Outcome = "exact"
    stuck: "Stuck | None" = None
    ended: bool = False

    @property
    def target(self) -> str:
        """The file it edits at `at`."""
        return self.patch.target

    def advance(self, tag: str, carried: Carried, patch: Patch | None, base: bytes) -> None:
        """Stand at `tag` now."""
        self.told += [(tag, p) for p in carried.pieces if p.outcome not in ("exact", "offset")]
        self.outcome = worst((self.outcome, carried.outcome))
        self.at, self.base, self.edited = tag, base, carried.after
        self.stuck = None
        if patch is None:
            self.ended = True
            by_other_means = carried.outcome in ("dropped", "resolved")
            self.outcome = carried.outcome if by_other_means else "absorbed"
        else:
            self.patch = patch


@dataclass(frozen=True)
class Stuck:
    """Why a thread did not reach a release.

    Attributes:
        since: the first tag it failed at.
        outcome: conflict, gone or blocked.
        why: for gone and blocked.
        target: the path of its file in the release it failed at.
        new: that file, as the required overlays leave it.
        carried: the attempt.
    """

    since: str
    outcome: Outcome
    why: str = ""
    target: str = ""
    new: bytes = b""
    carried: Carried | None = None


@dataclass(frozen=True, kw_only=True)
class PatchResult:
    """What became of one patch file of an overlay.

    Attributes:
        target: its file in the new release; in the old one where it was not carried.
        patch: the form for the new release; None if there is none.
        base, edited: its target with and without it, in the release it was carried from last.
        base_tag: that release.
        new: its target in the new release, as the required overlays leave it.
        after: the same with the edits that were carried; with markers where there are conflicts.
        partial: of a conflict, `after` without the edits that conflict.
        unchecked: why it could not be looked at.
    """

    overlay: str
    name: str
    target: str
    outcome: Outcome
    pieces: tuple[Piece, ...] = ()
    notes: tuple[str, ...] = ()
    patch: Patch | None = field(default=None, repr=False)
    base_tag: str = ""
    base: bytes = field(default=b"", repr=False)
    edited: bytes = field(default=b"", repr=False)
    new: bytes = field(default=b"", repr=False)
    after: bytes = field(default=b"", repr=False)
    partial: bytes = field(default=b"", repr=False)
    unchecked: str = ""

    @property
    def is_open(self) -> bool:
        """Whether a person has to decide."""
        return self.outcome in ("conflict", "gone", "blocked")

    def with_piece(self, piece: Piece) -> "PatchResult":
        """The same, with one more thing wrong."""
        return replace(self, outcome="conflict", pieces=(*self.pieces, piece))


@dataclass(frozen=True, kw_only=True)
class OverlayResult:
    """What became of one overlay.

    Attributes:
        since: the since-tag whose patches were carried.
        kept: the new release has a form of its own already, which was left alone.
        still_serves: the old patches apply as they are, every hunk in its symbol.
        problems: what the gate found, or why it was not asked, by code and sentence.
    """

    overlay: str
    since: str
    patches: tuple[PatchResult, ...]
    kept: bool = False
    still_serves: bool = False
    problems: tuple[str, ...] = ()

    @property
    def outcome(self) -> Outcome:
        """The worst of its patches."""
        return worst(patch.outcome for patch in self.patches)

    @property
    def is_open(self) -> bool:
        """Whether a person has to decide before this overlay can be written."""
        return not self.kept and (any(p.is_open for p in self.patches) or bool(self.problems))

    def forms(self) -> Mapping[str, Patch]:
        """The patches for the new release by target."""
        return {p.target: p.patch for p in self.patches if p.patch is not None}
