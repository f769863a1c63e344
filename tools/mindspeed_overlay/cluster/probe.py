"""Look at the megatron-core that an interpreter would import; print what is found as JSON.

This file runs by itself, in the interpreter that is looked at, on this host or at the far end of an
ssh connection (`python - < probe.py`): standard library only, Python 3.8 or newer. It imports
nothing of Megatron and judges nothing; the tool does that with what it prints.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import marshal
import os
import platform
import struct
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

MARK = "mindspeed-overlay-probe:"
"""Before the JSON: login shells print what they like."""
_DISTRIBUTIONS = ("torch", "torch-npu", "numpy", "transformer-engine", "triton")


def look() -> dict[str, Any]:
    """Everything that the tool asks of a host."""
    folders = dict.fromkeys(Path(entry).absolute() for entry in sys.path)
    path = [folder for folder in folders if folder.is_dir()]
    infos = [i for folder in path for i in sorted(folder.glob("megatron_core-*.dist-info"))]
    found: dict[str, Any] = {
        "node": platform.node(),
        "executable": sys.executable,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cann": _find_cann(),
        "pythonpath": os.environ.get("PYTHONPATH", ""),
        "versions": {name: _version(name) for name in _DISTRIBUTIONS},
        "path": [str(folder) for folder in path],
        "tag": sys.implementation.cache_tag,
        "locations": _locate(path),
        "infos": [str(info) for info in infos],
        "path_files": [str(p) for folder in path for p in _find_path_files(folder)],
    }
    if infos:
        found.update(_read_installation(infos[0]))
    return found


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _find_cann() -> str:
    homes = [os.environ.get("ASCEND_HOME_PATH", ""), "/usr/local/Ascend/ascend-toolkit/latest"]
    for home in filter(None, homes):
        for name in ("version.cfg", "compiler/version.info", "runtime/version.info"):
            file = Path(home, name)
            if file.is_file():
                for line in file.read_text("utf-8", errors="replace").splitlines():
                    if "ersion" in line and "=" in line:
                        return line.partition("=")[2].strip("[] ").rpartition(":")[2]
    return ""


def _locate(path: list[Path]) -> dict[str, str]:
    """Where `mindspeed` and every `megatron.*` subpackage would be imported from."""
    found: dict[str, str] = {}
    for folder in path:
        if (folder / "mindspeed" / "__init__.py").is_file():
            found.setdefault("mindspeed", str(folder / "mindspeed"))
        for package in sorted((folder / "megatron").glob("*")):
            if package.is_dir() and (package / "__init__.py").is_file():
                found.setdefault("megatron." + package.name, str(package))
        # A regular package ends the search: later folders add nothing to megatron.*
        if (folder / "megatron" / "__init__.py").is_file():
            break
    return found


def _find_path_files(folder: Path) -> Iterator[Path]:
    """`.pth` files that bring in, or run code about, another Megatron."""
    for pth in sorted(folder.glob("*.pth")):
        lines = pth.read_text("utf-8", errors="replace").splitlines()
        named = any("megatron" in line.lower() or "mindspeed." in line for line in lines)
        leads = any(
            (folder / line.strip() / name).is_dir()
            for line in lines
            if line and not line.startswith(("import ", "import\t", "#"))
            for name in ("megatron", "mindspeed")
        )
        if named or leads or "megatron" in pth.name:
            yield pth


def _read_installation(info: Path) -> dict[str, Any]:
    site = info.parent
    hashes = {}
    record = _read(info / "RECORD")
    for root in (*_find_own(site / "megatron", record), site / "mindspeed", info):
        for place in sorted(root.rglob("*")) if root.is_dir() else [root]:
            if place.is_file() and "__pycache__" not in place.parts:
                digest = hashlib.sha256(place.read_bytes()).hexdigest()
                hashes[place.relative_to(site).as_posix()] = digest
    return {
        "site": str(site),
        "info": info.name,
        "hashes": hashes,
        "record": record,
        "build_json": _read(site / "mindspeed" / "build.json"),
        "direct_url": _read(info / "direct_url.json"),
        "bytecode": list(_find_stale(site)),
    }


def _find_own(megatron: Path, record: str) -> Iterator[Path]:
    """What is ours below `megatron`; other distributions, such as energon, bring packages too."""
    for place in sorted(megatron.glob("*")):
        if place.name == "core" or not place.is_dir() or f"megatron/{place.name}/" in record:
            yield place


def _read(place: Path) -> str:
    return place.read_text("utf-8", errors="replace") if place.is_file() else ""


def _find_stale(site: Path) -> Iterator[tuple[str, str]]:
    """Bytecode that Python would not, or should not, load: its path and the reason."""
    for root in ("megatron", "mindspeed"):
        for pyc in sorted((site / root).rglob("__pycache__/*.pyc")):
            reason = _explain_stale(pyc, pyc.parent.parent / (pyc.name.split(".")[0] + ".py"))
            if reason:
                yield pyc.relative_to(site).as_posix(), reason


def _explain_stale(pyc: Path, source: Path) -> str:
    if not source.is_file():
        return "bytecode of a file that is not there"
    head = pyc.read_bytes()[:16]
    if len(head) < 16:
        return "truncated bytecode"
    flags, first, second = struct.unpack("<III", head[4:])
    if flags & 1:
        if not flags & 2:
            return "bytecode that is never checked against its source"
        fresh = importlib.util.source_hash(source.read_bytes()) == head[8:]
    else:
        status = source.stat()
        fresh = (first, second) == (int(status.st_mtime) & 0xFFFFFFFF, status.st_size & 0xFFFFFFFF)
        if fresh and not _is_compiled_from(pyc, source):
            return "bytecode of another file that had the same size and time"
    return "" if fresh else "stale bytecode: its source has changed since"


def _is_compiled_from(pyc: Path, source: Path) -> bool:
    # Image builders give all files one time: then size is all that Python compares.
    if not pyc.name.endswith(f".{sys.implementation.cache_tag}.pyc"):
        return True  # of another interpreter, or of -O
    try:
        stored = marshal.loads(pyc.read_bytes()[16:])
        return bool(stored == compile(source.read_bytes(), str(source), "exec", dont_inherit=True))
    except (ValueError, EOFError, TypeError, SyntaxError):
        return False


if __name__ == "__main__":
    print(MARK + json.dumps(look()))
