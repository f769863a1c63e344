"""Which overlays, files and patches make a build. Pure: no disk, no clock, no network.

A selection is closed under `requires`, ordered by the series, and refused in one sentence where it
cannot be. Patches whose package the chosen tree does not carry are left out and listed.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from mindspeed_overlay.errors import DefinitionError, Problem
from mindspeed_overlay.generate import GENERATED, generate_files
from mindspeed_overlay.overlay import Overlay, OverlaySet
from mindspeed_overlay.pins import Pins, Release
from mindspeed_overlay.tree import sha256

_TARGET = re.compile(rb"^--- a/(.+)$", re.MULTILINE)
FORMAT_VERSION = 2
"""Raised when the same inputs would give other wheel bytes."""


@dataclass(frozen=True)
class Selection:
    """What the user asked for."""

    features: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    level: int | None = None


@dataclass(frozen=True)
class PlannedPatch:
    """One patch of the plan: its overlay, file name and contents."""

    overlay: str
    name: str
    data: bytes

    @property
    def target(self) -> str:
        """The file it edits, as its diff says; empty for what is no patch."""
        match = _TARGET.search(self.data)
        return match[1].decode("utf-8", "replace").rstrip("\r") if match else ""


@dataclass(frozen=True)
class Plan:
    """Everything that decides the files of a build."""

    release: Release
    tree: str
    revision: int
    overlays: tuple[Overlay, ...]
    files: tuple[tuple[str, str, bytes], ...]
    """(overlay id, path, contents) of every new file."""
    patches: tuple[PlannedPatch, ...]
    skipped: tuple[PlannedPatch, ...]
    """Patches whose package this tree does not carry."""
    left_out: tuple[str, ...]
    """Overlays that `--all` or `--level` would take, but that do not serve this release."""

    def restricted_to(self, overlay_id: str) -> "Plan":
        """The part of this plan that one overlay brings."""
        return replace(
            self,
            files=tuple(f for f in self.files if f[0] == overlay_id),
            patches=tuple(p for p in self.patches if p.overlay == overlay_id),
        )

    def build_digest(self, source_digest: str) -> str:
        """SHA-256 over what decides the packaged files; no target, time or documentation in it."""
        from mindspeed_overlay import __version__

        lines = [
            f"format {FORMAT_VERSION}",
            f"generator {__version__}",
            f"release {self.release.tag}",
            f"source {source_digest}",
            f"tree {self.tree} {self.release.tree_digest if self.tree == 'full' else ''}".rstrip(),
            *(f"overlay {o.id} {self.overlay_digest(o.id)}" for o in self.overlays),
        ]
        return sha256("".join(f"{line}\n" for line in lines).encode())

    def overlay_rows(self) -> list[dict[str, Any]]:
        """What `build.json` and the lock say of each overlay, in order."""
        return [
            {
                "id": o.id,
                "level": o.level,
                "summary": o.summary,
                "digest": self.overlay_digest(o.id),
                "torch_npu": o.torch_npu,
                "options": [option.flag for option in o.options],
            }
            for o in self.overlays
        ]

    def overlay_digest(self, overlay_id: str) -> str:
        """SHA-256 over an overlay's new files and the diffs (not the headers) of its patches."""
        files = {path: data for owner, path, data in self.files if owner == overlay_id}
        files |= {
            f"patches/{p.name}": _diff_of(p.data) for p in self.patches if p.overlay == overlay_id
        }
        lines = (f"{sha256(files[path])}  {path}\n" for path in sorted(files))
        return sha256("".join(lines).encode())


def _diff_of(patch: bytes) -> bytes:
    start = patch.find(b"\n--- ")
    return patch[start + 1 :] if start >= 0 else patch


def make_plan(
    overlays: OverlaySet, pins: Pins, release: Release, *, selection: Selection, tree: str = "core"
) -> Plan:
    """Resolve a selection for a release.

    Raises:
        DefinitionError: E410-E413, the selection cannot be; each names two overlays and the rule.
    """
    order = tuple(r.tag for r in pins.releases)
    chosen, left_out = _select(overlays, selection, release.tag, order)
    files = tuple(
        (overlay.id, path, data)
        for overlay in chosen
        for path, data in overlay.files_for(release.tag, order).items()
    )
    generated = generate_files(chosen, known=overlays.overlays, tag=release.tag, order=order)
    files += tuple((GENERATED[path], path, data) for path, data in generated.items())
    _refuse_shared_files(files)
    patches = [
        PlannedPatch(overlay.id, name, data)
        for overlay in chosen
        for name, data in overlay.patches_for(release.tag, order).items()
    ]
    return Plan(
        release=release,
        tree=tree,
        revision=overlays.revision,
        overlays=chosen,
        files=files,
        patches=tuple(p for p in patches if _carries(tree, release, p.target)),
        skipped=tuple(p for p in patches if not _carries(tree, release, p.target)),
        left_out=left_out,
    )


def _carries(tree: str, release: Release, target: str) -> bool:
    # What is no patch is planned, so that applying it says what is wrong with it.
    if tree == "full" or not target or target.startswith("megatron/core/"):
        return True
    return target.startswith("megatron/training/") and release.training


def _refuse_shared_files(files: Iterable[tuple[str, str, bytes]]) -> None:
    owners: dict[str, str] = {}
    problems = []
    for overlay, path, _ in files:
        if path in owners:
            message = f"brings {path}, which {owners[path]} brings too"
            problems.append(Problem(code="E413", overlay=overlay, message=message))
        owners[path] = overlay
    if problems:
        raise DefinitionError(*problems)


def _select(
    overlays: OverlaySet, selection: Selection, tag: str, order: tuple[str, ...]
) -> tuple[tuple[Overlay, ...], tuple[str, ...]]:
    for name in (*selection.features, *selection.without):
        overlays.get(name)
    wanted = _wanted(overlays, selection)
    chosen: dict[str, str] = {}  # id -> who asked
    left_out: list[str] = []
    problems: list[Problem] = []
    for overlay in wanted:
        explicit = overlay.id in selection.features
        trouble = _close(overlays, overlay, selection, tag, order, chosen)
        if trouble and not explicit and trouble.code == "E411":
            left_out.append(overlay.id)
        elif trouble:
            problems.append(trouble)
    problems += _conflicts(overlays, chosen)
    if problems:
        raise DefinitionError(*problems)
    return tuple(o for o in overlays.overlays if o.id in chosen), tuple(left_out)


def _wanted(overlays: OverlaySet, selection: Selection) -> list[Overlay]:
    if not selection.features and selection.level is None:
        return [o for o in overlays.overlays if o.id not in selection.without]
    level = -1 if selection.level is None else selection.level
    return [
        o
        for o in overlays.overlays
        if o.id in selection.features or (o.level <= level and o.id not in selection.without)
    ]


def _close(
    overlays: OverlaySet,
    overlay: Overlay,
    selection: Selection,
    tag: str,
    order: tuple[str, ...],
    chosen: dict[str, str],
) -> Problem | None:
    """Add `overlay` and all it requires to `chosen`, or return why that cannot be."""
    added: dict[str, str] = {}
    pending = [(overlay.id, overlay.id)]
    while pending:
        name, asker = pending.pop()
        if name in selection.without:
            via = f"requires {name}, which --without excludes"
            message = via if name != asker else "is asked for and excluded by --without"
            return Problem(code="E410", overlay=asker, message=message)
        current = overlays.get(name)
        if not current.serves(tag, order):
            message = f"serves {current.releases}, not {tag}"
            if name != asker:
                message = f"requires {name}, which {message}"
            hint = "`mindspeed-overlay list` shows the releases of each overlay"
            return Problem(code="E411", overlay=asker, message=message, hint=hint)
        added[name] = asker
        pending += [(n, name) for n in current.requires if n not in added and n not in chosen]
    chosen.update(added)
    return None


def _conflicts(overlays: OverlaySet, chosen: Iterable[str]) -> list[Problem]:
    return [
        Problem(
            code="E412",
            overlay=name,
            message=f"conflicts with {other}, and both are selected",
            hint=f"leave one out: --without {other}",
        )
        for name in chosen
        for other in overlays.get(name).conflicts
        if other in set(chosen)
    ]
