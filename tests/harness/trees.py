"""Pristine and patched Megatron trees on disk, made by the tool itself from pinned sources."""

import hashlib
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

from mindspeed_overlay.build import gate_files, patch_files
from mindspeed_overlay.data import default_overlays, default_pins
from mindspeed_overlay.overlay import load_overlays
from mindspeed_overlay.pins import Release, load_pins
from mindspeed_overlay.plan import Selection, make_plan
from mindspeed_overlay.source import open_source
from mindspeed_overlay.tree import Files

ALL_RELEASES = tuple(release.tag for release in load_pins(default_pins()).releases)
GIT_VARIABLE = "MINDSPEED_OVERLAY_TEST_GIT"
"""Environment: a Megatron-LM repository, URL or path, for tests of the full tree."""

COMPARED_RELEASES = ("core_v0.12.1", "core_v0.16.1", "core_v0.19.0")
"""Where option-off is compared with the pristine tree: the oldest, the default, the newest."""


@dataclass
class Trees:
    """Makes each tree once and keeps it under `folder`.

    The files of a release whose wheels ask for a newer Python are taken all the same: they run on
    this one when they are put on the path.
    """

    folder: Path
    overlays: Path = field(default_factory=default_overlays)
    """The overlay set that `patched` applies from."""
    _sources: dict[str, Files] = field(default_factory=dict)

    def pristine(self, tag: str, *, tree: str = "core") -> Path:
        """The folder with the unmodified `megatron` of a release, to be put on `sys.path`."""
        return self._write(f"{tag}-{tree}-pristine", self._source(tag, tree))

    def patched(self, tag: str, overlays: tuple[str, ...] = (), *, tree: str = "core") -> Path:
        """The folder with `megatron` and `mindspeed` of a release with overlays applied.

        Args:
            tag: a pinned release.
            overlays: ids, applied with what they require; empty means all that serve the release.
            tree: "core" from PyPI, or "full" from the repository that GIT_VARIABLE names.
        """
        chosen_names = "-".join(overlays or ["all"]).replace("/", ".")
        if len(chosen_names) > 100:  # a folder's name has a limit
            chosen_names = hashlib.sha256(chosen_names.encode()).hexdigest()[:16]
        name = f"{tag}-{tree}-{chosen_names}"
        folder = self.folder / name
        if folder.is_dir():
            return folder
        pins = load_pins(default_pins())
        known = load_overlays(self.overlays, tags=ALL_RELEASES)
        chosen = Selection(features=overlays)
        plan = make_plan(known, pins, pins.get(tag), selection=chosen, tree=tree)
        source = self._source(tag, tree)
        patched = patch_files(plan, source)
        gate_files(plan, source, patched)
        return self._write(name, patched.files)

    def _source(self, tag: str, tree: str) -> Files:
        key = f"{tag} {tree}"
        if key not in self._sources:
            release = load_pins(default_pins()).get(tag)
            spec = "pypi" if tree == "core" else f"git:{os.environ[GIT_VARIABLE]}"
            source = open_source(release, spec=spec, tree=tree, python=_python_for(release))
            self._sources[key] = source.files
        return self._sources[key]

    def _write(self, name: str, files: Files) -> Path:
        folder = self.folder / name
        if not folder.is_dir():
            for path, data in files.items():
                target = folder / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)
        return folder


def _python_for(release: Release) -> str:
    """This Python, or the oldest that the release's wheels are for."""
    from packaging.specifiers import SpecifierSet

    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    floor = release.python.removeprefix(">=")
    return here if SpecifierSet(release.python).contains(here) else floor
