"""A small real release with an overlay set, pins and a stocked cache, and the tool run on them."""

import contextlib
import io
import platform
import sys
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

from builders import CORE, VERSION, Upstream, make_release, make_wheel
from mindspeed_overlay import cli
from mindspeed_overlay.errors import OverlayError
from mindspeed_overlay.patch import make_patch, serialize_patch
from mindspeed_overlay.pinning import format_stanza
from mindspeed_overlay.syntax import parse_module
from mindspeed_overlay.tree import git_blob_id

TAG = "core_v0.1.0"
ABI = f"cp{sys.version_info[0]}{sys.version_info[1]}"
HERE = f"{ABI}-{ABI}-manylinux_2_17_{platform.machine()}"
OTHER = "cp312-cp312-manylinux_2_24_aarch64.manylinux_2_28_aarch64"
OTHER_TARGET = ("3.12", "linux_aarch64")
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
PLATFORM = f"linux_{platform.machine()}"
MLP = "megatron/core/transformer/mlp.py"
INIT = "megatron/core/__init__.py"
OURS = ("__init__", "agreement", "floors", "origin", "start", "survey")
ASCEND_FILES = Path(__file__).parents[2] / "overlays/base/ascend/files/mindspeed"


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def paths(self) -> list[Path]:
        """The lines of standard output, as paths."""
        return [Path(line) for line in self.out.split("\n") if line]


@dataclass(frozen=True)
class World:
    """A folder with everything that a build needs, and no network."""

    folder: Path
    overlays: Path
    pins: Path
    cache: Path
    upstream: Upstream
    environment: dict[str, str] = field(default_factory=dict)

    def call(self, *words: object, check: bool = True) -> Done:
        """Run the tool in this process.

        Args:
            words: the command line after the program's name.
            check: fail the test unless it succeeds.
        """
        line = ["mindspeed-overlay", "--overlays", self.overlays, "--pins", self.pins, *words]
        argv = [str(word) for word in line]
        out, err = io.StringIO(), io.StringIO()
        environment = {"MINDSPEED_OVERLAY_CACHE": str(self.cache), **self.environment}
        with (
            mock.patch.object(sys, "argv", argv),
            mock.patch.dict("os.environ", environment),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            try:
                code = cli.cli.main(argv[1:], standalone_mode=False)
            except OverlayError as error:
                cli.report_error(error)
                code = error.exit_code
        done = Done(int(code or 0), out.getvalue(), err.getvalue())
        assert not check or done.code == 0, done.err
        return done

    def build(self, out: Path, *words: object) -> list[Path]:
        """Build for this Python and for another target; the wheel of this one comes first."""
        targets = ("--python", f"{PYTHON},3.12", "--platform", f"{PLATFORM},linux_aarch64")
        paths = self.call("-q", "build", "--out", out, *(words or targets)).paths
        return sorted(paths, key=lambda path: ABI not in path.name)


def make_world(folder: Path) -> World:
    """A release of two wheels, and an overlay that patches one file and brings the checks."""
    links = folder / "links"
    links.mkdir(parents=True)
    files = dict(CORE)
    wheels = [make_wheel(links, tag=tag, files=files) for tag in (HERE, OTHER)]
    wheels += [make_wheel(links, tag="cp312-cp312-manylinux_2_17_x86_64", files=files)]
    wheels += [make_wheel(links, tag=f"{ABI}-{ABI}-manylinux_2_24_aarch64", files=files)]
    release = make_release(wheels)
    upstream = Upstream(release, links, folder / "none")
    cache = folder / "cache"
    for wheel in release.wheels:
        entry = cache / "sha256" / wheel.sha256
        entry.mkdir(parents=True, exist_ok=True)
        (entry / wheel.filename).write_bytes((links / wheel.filename).read_bytes())
    pins = folder / "megatron_pin.txt"
    stanza = format_stanza(release).replace("\n\n", "\ndefault = true\n\n", 1)
    pins.write_text(f"format = 1\n\n{stanza}")
    write_overlays(folder / "overlays")
    return World(folder, folder / "overlays", pins, cache, upstream)


def write_overlays(root: Path, *, value: str = "two") -> None:
    """The overlay set; another `value` makes another build."""
    overlay = root / "base/small"
    (overlay / "patches" / TAG).mkdir(parents=True, exist_ok=True)
    (root / "series").write_text("revision 1\nbase/small\n")
    (overlay / "overlay.toml").write_text(
        'id = "base/small"\nsummary = "Answers"\nlevel = 0\nreleases = ">=core_v0.1.0"\n'
    )
    answer = CORE[MLP].replace(b"    pass\n", f"    pass\n    answer = {value!r}\n".encode())
    hook = b"from mindspeed.core.device import prepare_device\n\nprepare_device()\n"
    for target, after in ((MLP, answer), (INIT, CORE[INIT] + hook)):
        name = f"{target.removesuffix('.py').replace('/', '.')}.patch"
        (overlay / "patches" / TAG / name).write_bytes(make_small_patch(target, after))
    files = overlay / "files/mindspeed"
    (files / "core").mkdir(parents=True, exist_ok=True)
    for name in ("__init__.py", "verify.py", *(f"core/{n}.py" for n in OURS)):
        (files / name).write_bytes((ASCEND_FILES / name).read_bytes())
    (files / "core/device.py").write_text("def prepare_device() -> None:\n    pass\n")


def make_small_patch(target: str, after: bytes) -> bytes:
    """A patch of one file of the release."""
    before = CORE[target]
    made = make_patch(
        before,
        after,
        target=target,
        header={
            "Subject": ("Answer",),
            "Feature": ("base/small",),
            "Base-Blob": (f"{TAG} {git_blob_id(before)}",),
            "Origin": ("written for this overlay",),
            "Forwarded": ("not-needed",),
            "Last-Update": ("2025-01-01",),
            "Remove-When": ("never",),
        },
        symbol_of=parse_module(before).symbol_at,
        reason="Because.",
    )
    return serialize_patch(made)


__all__ = ["HERE", "MLP", "OTHER", "PLATFORM", "PYTHON", "TAG", "VERSION", "World", "make_world"]
