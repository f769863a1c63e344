"""A fake upstream of several releases, an overlay set on it, and the port of one to the other."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

from mindspeed_overlay.overlay import OverlaySet, load_overlays
from mindspeed_overlay.patch import make_patch, name_patch, serialize_patch
from mindspeed_overlay.pins import Pins, Release
from mindspeed_overlay.port.engine import Job, Ported, run_port
from mindspeed_overlay.port.trees import Tree
from mindspeed_overlay.syntax import parse_module
from mindspeed_overlay.tree import git_blob_id

TAGS = ("core_v1.0.0", "core_v2.0.0", "core_v3.0.0")
CORE = "megatron/core/__init__.py"
MLP = "megatron/core/mlp.py"
FUSED = b"def fused(y):\n    return y\n\n\ndef hook(*values):\n    pass\n"
TODAY = "2026-01-02"

Trees = Mapping[str, Mapping[str, bytes]]


def text(source: str) -> bytes:
    """Source as it stands in a file."""
    return dedent(source).lstrip("\n").encode()


def make_release(tag: str) -> Release:
    version = tag.removeprefix("core_v")
    return Release(tag, "c" * 40, version, ">=3.10", "5" * 64, "7" * 64, (), (), "", "", True)


def make_pins() -> Pins:
    releases = tuple(make_release(tag) for tag in TAGS)
    return Pins(releases, releases[0])


def make_tree(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """A tree with the packages that every tree has."""
    return {CORE: b"", "megatron/core/other.py": b"x = 1\n", **files}


def patch_bytes(
    before: bytes, after: bytes, *, target: str, overlay: str, tag: str, blob: str = ""
) -> bytes:
    """A canonical patch file with a whole header."""
    header = {
        "Subject": ("Hook in",),
        "Feature": (overlay,),
        "Base-Blob": (f"{tag} {blob or git_blob_id(before)}",),
        "Origin": ("written for this test",),
        "Forwarded": ("not-needed",),
        "Last-Update": ("2025-01-01",),
        "Remove-When": ("never",),
    }
    symbol_at = parse_module(before if target.endswith(".py") else b"").symbol_at
    patch = make_patch(
        before, after, target=target, header=header, symbol_of=symbol_at, reason="Because."
    )
    return serialize_patch(patch)


def write_overlay(
    root: Path,
    name: str,
    patches: Mapping[str, tuple[bytes, bytes]],
    *,
    tag: str = TAGS[0],
    requires: tuple[str, ...] = (),
    blobs: Mapping[str, str] | None = None,
) -> None:
    """Add an overlay to a set; `patches` maps targets to what they were and became."""
    folder = root / name
    (folder / "patches" / tag).mkdir(parents=True)
    lines = [f'id = "{name}"', 'summary = "s"', "level = 0", f"requires = {list(requires)}"]
    (folder / "overlay.toml").write_text("\n".join(lines) + "\n")
    for target, (before, after) in patches.items():
        blob = (blobs or {}).get(target, "")
        data = patch_bytes(before, after, target=target, overlay=name, tag=tag, blob=blob)
        (folder / "patches" / tag / name_patch(target)).write_bytes(data)
    if not (root / "series").exists():
        (folder / "files/mindspeed").mkdir(parents=True)
        (folder / "files/mindspeed/__init__.py").write_bytes(b"")
        (folder / "files/mindspeed/fused.py").write_bytes(FUSED)
    series = root / "series"
    known = series.read_text() if series.exists() else "revision 1\n"
    series.write_text(f"{known}{name}\n")


def load(root: Path) -> OverlaySet:
    return load_overlays(root, tags=TAGS)


def open_trees(trees: Trees) -> list[Tree]:
    return [Tree(make_release(tag), "core", lambda f=files: f) for tag, files in trees.items()]  # type: ignore[misc]


def make_job(root: Path, trees: Trees, **options: object) -> Job:
    opened = open_trees(trees)
    job = Job(overlays=load(root), pins=make_pins(), trees=opened, today=TODAY)
    return replace(job, **options)  # type: ignore[arg-type]


def port_file(
    root: Path, before: bytes, after: bytes, new: bytes, *, target: str = MLP, **more: bytes
) -> Ported:
    """Port one overlay with one patch from the first release to the second."""
    write_overlay(root, "fusions/one", {target: (before, after)})
    trees = {
        TAGS[0]: make_tree({target: before}),
        TAGS[1]: make_tree({target: new, **{k.replace("__", "/"): v for k, v in more.items()}}),
    }
    return run_port(make_job(root, trees))
