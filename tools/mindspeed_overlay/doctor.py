"""Look at a machine without importing or running anything of torch, torch_npu or CANN."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from packaging.specifiers import SpecifierSet

_CANN_HOMES = ("/usr/local/Ascend/ascend-toolkit/latest", "/usr/local/Ascend/cann")


@dataclass(frozen=True)
class Finding:
    """One thing looked at. State: ok, absent (not needed for building), or missing (needed)."""

    name: str
    state: str
    found: str
    advice: str = ""

    def to_json(self) -> dict[str, str]:
        """For machines."""
        return asdict(self)


def examine() -> list[Finding]:
    """Everything `doctor` prints, in order."""
    return [
        _python(),
        _git(),
        _pip(),
        *_pip_configuration(),
        _cache(),
        _distribution("torch", "needed where models run: `pip install torch`"),
        _distribution("torch-npu", "needed on Ascend hosts, in the version that matches torch"),
        _torch_pair(),
        _operator_floor(),
        _cann(),
        _devices(),
        _distribution("megatron-core", "install the wheel that `mindspeed-overlay build` prints"),
    ]


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    return Finding("Python", "ok", f"{version} at {sys.executable}")


def _run(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def _git() -> Finding:
    advice = "needed for --source git and for `apply`: install git 2.28 or newer"
    found = _run("git", "--version") if shutil.which("git") else ""
    version = re.search(r"(\d+)\.(\d+)", found)
    if not version:
        return Finding("git", "absent", "no git on PATH", advice)
    if (int(version[1]), int(version[2])) < (2, 28):
        return Finding("git", "absent", f"{found} is too old", advice)
    return Finding("git", "ok", found)


def _pip() -> Finding:
    found = _run(sys.executable, "-m", "pip", "--version")
    if not found:
        advice = f"{sys.executable} -m ensurepip"
        return Finding("pip", "missing", f"{sys.executable} has no pip", advice)
    return Finding("pip", "ok", found.split(" from ")[0])


def _pip_configuration() -> Iterator[Finding]:
    """Where pip looks, by its own account; addresses may hold credentials, so those are cut out."""
    lines = _run(sys.executable, "-m", "pip", "config", "list").splitlines()
    for line in lines:
        key, _, value = line.partition("=")
        if any(word in key for word in ("index", "find-links", "proxy", "cert", "no-index")):
            shown = re.sub(r"//[^/@\s']+@", "//***@", value.strip("'"))
            yield Finding(f"pip {key.split('.', 1)[-1].strip('.')}", "ok", shown)
    if not any("index" in line.partition("=")[0] for line in lines):
        yield Finding("pip index", "ok", "pip's default")


def _cache() -> Finding:
    from mindspeed_overlay.source.cache import find_cache_dir

    folder = find_cache_dir()
    probe = next(p for p in (folder, *folder.parents) if p.exists())
    if not os.access(probe, os.W_OK):
        advice = "set MINDSPEED_OVERLAY_CACHE to a folder you can write"
        return Finding("cache", "missing", f"{folder} cannot be written", advice)
    free = shutil.disk_usage(probe).free / 2**30
    return Finding("cache", "ok", f"{folder}, {free:.1f} GiB free")


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _distribution(name: str, advice: str) -> Finding:
    found = _version(name)
    return Finding(name, "ok", found) if found else Finding(name, "absent", "not installed", advice)


def _torch_pair() -> Finding:
    torch, npu = _version("torch"), _version("torch-npu")
    if not (torch and npu):
        return Finding("torch and torch-npu", "absent", "not both installed")
    pair = [re.match(r"\d+\.\d+\.\d+", v) for v in (torch, npu)]
    if all(pair) and pair[0][0] == pair[1][0]:  # type: ignore[index]
        return Finding("torch and torch-npu", "ok", "versions match")
    advice = f"install torch-npu of torch's version {torch.partition('+')[0]}"
    return Finding("torch and torch-npu", "missing", f"{torch} and {npu} do not match", advice)


def _operator_floor() -> Finding:
    """The installed torch_npu against the floors that the built-in overlays state."""
    from mindspeed_overlay.data import default_overlays, default_pins
    from mindspeed_overlay.overlay import load_overlays
    from mindspeed_overlay.pins import load_pins

    name, found = "torch-npu of overlays", _version("torch-npu")
    if not found:
        return Finding(name, "absent", "torch-npu is not installed")
    tags = tuple(release.tag for release in load_pins(default_pins()).releases)
    overlays = load_overlays(default_overlays(), tags=tags).overlays
    too_new = [o for o in overlays if o.torch_npu and found not in SpecifierSet(o.torch_npu)]
    if not too_new:
        return Finding(name, "ok", f"{found} serves every overlay")
    needs = ", ".join(f"{o.id} needs {o.torch_npu}" for o in too_new)
    advice = "install a newer torch-npu, or build --without these overlays"
    return Finding(name, "missing", f"{found}: {needs}", advice)


def _cann() -> Finding:
    homes = [os.environ.get("ASCEND_HOME_PATH", ""), *_CANN_HOMES]
    for home in filter(None, homes):
        for name in ("version.cfg", "compiler/version.info", "runtime/version.info"):
            path = Path(home) / name
            if path.is_file():
                text = path.read_text("utf-8", errors="replace")
                version = re.search(r"[Vv]ersion\w*=\[?(?:[\w.]+:)?([\w.]+)", text)
                return Finding("CANN", "ok", f"{version[1] if version else 'unknown'} at {home}")
    advice = "on an Ascend host, source the toolkit's set_env.sh; elsewhere the simulator serves"
    return Finding("CANN", "absent", "no toolkit found", advice)


def _devices() -> Finding:
    found = sorted(Path("/dev").glob("davinci[0-9]*"))
    if not found:
        advice = "tests run on the simulated device: `python -m ascend_sim doctor`"
        return Finding("NPU", "absent", "no /dev/davinci*", advice)
    return Finding("NPU", "ok", f"{len(found)} device files")
