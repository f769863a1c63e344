"""Pristine and patched Megatron trees on disk, made by the tool itself from pinned sources."""

import sys
from dataclasses import dataclass, field
from pathlib import Path

from mindspeed_overlay.build import gate_files, patch_files
from mindspeed_overlay.data import default_overlays, default_pins
from mindspeed_overlay.overlay import load_overlays
from mindspeed_overlay.pins import Pins, Release, load_pins
from mindspeed_overlay.plan import Selection, make_plan
from mindspeed_overlay.source import open_source
from mindspeed_overlay.tree import Files

ALL_RELEASES = tuple(release.tag for release in load_pins(default_pins()).releases)
COMPARED_RELEASES = ("core_v0.12.1", "core_v0.16.1", "core_v0.19.0")
"""Where option-off is compared with the pristine tree: the oldest, the default, the newest."""


@dataclass
class Trees:
    """Makes each tree once and keeps it under `folder`.

    The files of a release whose wheels ask for a newer Python are taken all the same: they run on
    this one when they are put on the path.
    """

    folder: Path
    _sources: dict[str, Files] = field(default_factory=dict)

    def pristine(self, tag: str) -> Path:
        """The folder with the unmodified `megatron` of a release, to be put on `sys.path`."""
        return self._write(f"{tag}-pristine", self._source(tag))

    def patched(self, tag: str, overlays: tuple[str, ...] = ()) -> Path:
        """The folder with `megatron` and `mindspeed` of a release with overlays applied.

        Args:
            tag: a pinned release.
            overlays: ids, applied with what they require; empty means all that serve the release.
        """
        name = "-".join([tag, *(overlays or ["all"])]).replace("/", ".")
        folder = self.folder / name
        if folder.is_dir():
            return folder
        pins = load_pins(default_pins())
        known = load_overlays(default_overlays(), tags=ALL_RELEASES)
        plan = make_plan(known, pins, pins.get(tag), selection=Selection(features=overlays))
        patched = patch_files(plan, self._source(tag))
        gate_files(plan, self._source(tag), patched)
        return self._write(name, patched.files)

    def _source(self, tag: str) -> Files:
        if tag not in self._sources:
            pins: Pins = load_pins(default_pins())
            release = pins.get(tag)
            self._sources[tag] = open_source(release, python=_python_for(release)).files
        return self._sources[tag]

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
