"""Verify an installed megatron-core: its files, its bytecode, and that nothing shadows it.

The interpreter to check is started once to tell its import path; nothing of Megatron is imported.
"""

import importlib.util
import json
import struct
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from mindspeed_overlay.errors import MissingError, Problem
from mindspeed_overlay.tree import sha256
from mindspeed_overlay.verify import Verdict, check_records
from mindspeed_overlay.wheelname import BUILD_JSON

_PROBE = """
import json, os, sys
path = [os.path.abspath(p or os.getcwd()) for p in sys.path]
print(json.dumps({"path": path, "tag": sys.implementation.cache_tag}))
"""


def verify_installed(
    *, python: str = "", build_sha256: str = "", cwd: Path | None = None
) -> Verdict:
    """Check the megatron-core that `python` (default: this interpreter) would import from `cwd`.

    Args:
        python: the interpreter of the environment to check.
        build_sha256: expected SHA-256 of the installed build.json, from a lock file.
        cwd: where the training script would start; a Megatron-LM checkout there shadows the wheel.
    """
    path, cache_tag = find_import_path(python or sys.executable, cwd or Path.cwd())
    locations = _locations(path)
    found = [info for folder in path for info in sorted(folder.glob("megatron_core-*.dist-info"))]
    if not found:
        message = "no megatron-core is installed here"
        hint = "install the wheel that `mindspeed-overlay build` prints"
        problem = Problem(code="E903", message=message, hint=hint)
        return Verdict(python or sys.executable, "", "", 0, (problem,), locations)
    info = found[0]
    site = info.parent
    files = _installed_files(site, info)
    build, problems = check_records(files, installed=True)
    problems += [
        Problem(
            code="E905", path=str(other), message=f"{other}: a second megatron-core is installed"
        )
        for other in found[1:]
    ]
    if build_sha256 and sha256(files.get(BUILD_JSON, b"")) != build_sha256:
        problems.append(
            Problem(
                code="E906", path=BUILD_JSON, message="build.json is not the one in the lock file"
            )
        )
    problems += _bytecode(site, files, cache_tag)
    problems += _shadows(locations, site)
    problems += [problem for folder in path for problem in _path_files(folder)]
    return Verdict(
        str(site),
        build.get("version", ""),
        build.get("digest", ""),
        len(files),
        tuple(problems),
        locations,
    )


def find_import_path(python: str, cwd: Path) -> tuple[list[Path], str]:
    """The folders an interpreter started in `cwd` imports from, and its bytecode tag."""
    try:
        out = subprocess.run(
            [python, "-c", _PROBE], check=True, capture_output=True, text=True, cwd=cwd, timeout=60
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise MissingError(
            Problem(
                code="E803", message=f"cannot start {python}: {error}", hint="give --python PATH"
            )
        ) from error
    answer = json.loads(out.splitlines()[-1])
    return [Path(p) for p in dict.fromkeys(answer["path"]) if Path(p).is_dir()], answer["tag"]


def _locations(path: Iterable[Path]) -> dict[str, str]:
    """Where `mindspeed` and every `megatron.*` subpackage would be imported from."""
    found: dict[str, str] = {}
    for folder in path:
        regular = (folder / "megatron" / "__init__.py").is_file()
        if (folder / "mindspeed" / "__init__.py").is_file():
            found.setdefault("mindspeed", str(folder / "mindspeed"))
        for package in sorted((folder / "megatron").glob("*")):
            if package.is_dir() and (package / "__init__.py").is_file():
                found.setdefault(f"megatron.{package.name}", str(package))
        if regular:  # a regular package ends the search: later folders add nothing to megatron.*
            break
    return found


def _installed_files(site: Path, info: Path) -> dict[str, bytes]:
    roots = [site / "megatron", site / "mindspeed", info]
    return {
        path.relative_to(site).as_posix(): path.read_bytes()
        for root in roots
        for path in sorted(root.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def _shadows(locations: Mapping[str, str], site: Path) -> list[Problem]:
    return [
        Problem(
            code="E905",
            path=where,
            message=f"{name} is imported from {where}, not from the installed wheel",
            hint="take that folder off PYTHONPATH, or start from another folder",
        )
        for name, where in sorted(locations.items())
        if Path(where).parent.parent.resolve() != site.resolve()
        and (name != "mindspeed" or Path(where).parent.resolve() != site.resolve())
    ]


def _path_files(folder: Path) -> list[Problem]:
    """`.pth` files that bring in, or run code about, another Megatron."""
    problems = []
    for pth in sorted(folder.glob("*.pth")):
        lines = pth.read_text("utf-8", errors="replace").splitlines()
        named = any("megatron" in line.lower() or "mindspeed." in line for line in lines)
        leads = any(
            line and not line.startswith(("import ", "import\t", "#"))
            and any((folder / line.strip() / name).is_dir() for name in ("megatron", "mindspeed"))
            for line in lines
        )  # fmt: skip
        if named or leads or "megatron" in pth.name:
            message = f"{pth}: a .pth file that changes which Megatron is imported"
            problems.append(
                Problem(code="E905", path=str(pth), message=message, hint=f"delete {pth}")
            )
    return problems


def _bytecode(site: Path, files: Mapping[str, bytes], cache_tag: str) -> list[Problem]:
    problems = []
    for root in ("megatron", "mindspeed"):
        for pyc in sorted((site / root).rglob("__pycache__/*.pyc")):
            name = pyc.name.split(".")
            source = pyc.parent.parent / f"{name[0]}.py"
            reason = _stale(pyc, source)
            if reason:
                shown = pyc.relative_to(site).as_posix()
                hint = f"delete {pyc}"
                problems.append(
                    Problem(code="E904", path=shown, message=f"{shown}: {reason}", hint=hint)
                )
    return problems


def _stale(pyc: Path, source: Path) -> str:
    """Why Python would not, or should not, load this bytecode for that source."""
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
    return "" if fresh else "stale bytecode: its source has changed since"
