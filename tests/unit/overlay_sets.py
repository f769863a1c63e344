"""Small overlay sets and pins for tests of planning."""

from pathlib import Path

from mindspeed_overlay.overlay import OverlaySet, load_overlays
from mindspeed_overlay.pins import Pins, Release

TAGS = ("core_v1", "core_v2", "core_v3")


def make_release(tag: str, *, training: bool = False) -> Release:
    return Release(
        tag=tag,
        commit="c" * 40,
        version=tag.removeprefix("core_v") + ".0",
        python=">=3.10",
        source_digest="5" * 64,
        tree_digest="7" * 64,
        wheels=(),
        other_digests=(),
        yanked="",
        license="",
        training=training,
    )


def make_pins() -> Pins:
    releases = tuple(make_release(tag, training=tag == "core_v3") for tag in TAGS)
    return Pins(releases, releases[1])


def write_overlay(root: Path, name: str, toml: str = "", **files: str) -> None:
    """Write one overlay; keys of `files` are paths with `__` for `/`."""
    folder = root / name
    folder.mkdir(parents=True)
    head = "" if "summary" in toml else 'summary = "s"\n'
    level = "" if "level" in toml else "level = 0\n"
    (folder / "overlay.toml").write_text(f'id = "{name}"\n{head}{level}{toml}')
    for key, text in files.items():
        path = folder / key.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def write_series(root: Path, *names: str) -> None:
    root.mkdir(parents=True, exist_ok=True)
    (root / "series").write_text("revision 3\n" + "".join(f"{name}\n" for name in names))


def load(root: Path) -> OverlaySet:
    return load_overlays(root, tags=TAGS)
