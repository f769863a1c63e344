"""Verify an installed megatron-core: its files, its bytecode, and that nothing shadows it.

The interpreter to check is started once, here or on another host, with a script that tells what it
would import; nothing of Megatron is imported.
"""

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mindspeed_overlay.errors import MissingError, Problem
from mindspeed_overlay.verify import Verdict, check_records
from mindspeed_overlay.wheelname import BUILD_JSON

PROBE = Path(__file__).with_name("cluster") / "probe.py"
_MARK = "mindspeed-overlay-probe:"


def verify_installed(
    *, python: str = "", build_sha256: frozenset[str] = frozenset(), cwd: Path | None = None
) -> Verdict:
    """Check the megatron-core that `python` (default: this interpreter) would import from `cwd`.

    Args:
        python: the interpreter of the environment to check.
        build_sha256: the SHA-256 that the installed build.json may have, from a lock file.
        cwd: where the training script would start; a Megatron-LM checkout there shadows the wheel.
    """
    found = probe(python or sys.executable, cwd or Path.cwd())
    return judge(found, build_sha256=build_sha256)


def probe(python: str, cwd: Path) -> dict[str, Any]:
    """What an interpreter started in `cwd` would import, as `cluster/probe.py` tells it.

    Raises:
        MissingError: E803, it cannot be started.
    """
    try:
        done = subprocess.run(
            [python, "-"],
            input=PROBE.read_text("utf-8"),
            check=True,
            capture_output=True,
            text=True,
            cwd=cwd,
            timeout=120,
        )
        return read_probe(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        message = f"cannot start {python}: {error}"
        raise MissingError(
            Problem(code="E807", message=message, hint="give --python PATH")
        ) from error


def read_probe(said: str) -> dict[str, Any]:
    """The answer in a probe's output, whatever a login shell printed around it.

    Raises:
        ValueError: there is none.
    """
    for line in said.splitlines():
        if line.startswith(_MARK):
            found: dict[str, Any] = json.loads(line.removeprefix(_MARK))
            return found
    raise ValueError("it gave no answer")


def find_import_path(python: str, cwd: Path) -> tuple[list[Path], str]:
    """The folders an interpreter started in `cwd` imports from, and its bytecode tag."""
    found = probe(python, cwd)
    return [Path(folder) for folder in found["path"]], found["tag"]


def judge(found: Mapping[str, Any], *, build_sha256: frozenset[str] = frozenset()) -> Verdict:
    """What is wrong with an installation, from what the probe tells of it."""
    locations: dict[str, str] = found["locations"]
    if not found["infos"]:
        message = "no megatron-core is installed here"
        hint = "install the wheel that `mindspeed-overlay build` prints"
        problem = Problem(code="E903", message=message, hint=hint)
        return Verdict(found["executable"], "", "", 0, (problem,), locations)
    record = f"{found['info']}/RECORD"
    texts = {record: found["record"].encode(), BUILD_JSON: found["build_json"].encode()}
    hashes: dict[str, str] = found["hashes"]
    known = {path: data for path, data in texts.items() if path in hashes}
    build, problems = check_records(hashes, known, installed=True)
    if '"editable": true' in found["direct_url"]:
        message = f"{found['info']}: an editable install, whose files are elsewhere"
        hint = "uninstall it, then install the wheel"
        problems.append(Problem(code="E905", path=found["info"], message=message, hint=hint))
    problems += [
        Problem(code="E905", path=other, message=f"{other}: a second megatron-core is installed")
        for other in found["infos"][1:]
    ]
    if build_sha256 and hashes.get(BUILD_JSON) not in build_sha256:
        message = "build.json is not the one in the lock file"
        problems.append(Problem(code="E906", path=BUILD_JSON, message=message))
    problems += _name_bytecode(found)
    problems += _find_shadows(locations, Path(found["site"]), found["pythonpath"])
    problems += [_name_path_file(pth) for pth in found["path_files"]]
    return Verdict(
        found["site"],
        build.get("version", ""),
        build.get("digest", ""),
        len(hashes),
        tuple(problems),
        locations,
    )


def relocate(problems: Iterable[Problem], host: str) -> tuple[Problem, ...]:
    """The same problems, named as those of a host."""
    return tuple(replace(p, message=f"{host}: {p.message}") for p in problems)


def _name_bytecode(found: Mapping[str, Any]) -> list[Problem]:
    return [
        Problem(
            code="E904",
            path=path,
            message=f"{path}: {reason}",
            hint=f"delete {Path(found['site'], path)}",
        )
        for path, reason in found["bytecode"]
    ]


def _find_shadows(locations: Mapping[str, str], site: Path, pythonpath: str) -> list[Problem]:
    because = f"; PYTHONPATH is {pythonpath}" if pythonpath else ""
    return [
        Problem(
            code="E905",
            path=where,
            message=f"{name} is imported from {where}, not from the installed wheel{because}",
            hint="take that folder off PYTHONPATH, or start from another folder",
        )
        for name, where in sorted(locations.items())
        if not _is_at(Path(where), site, depth=1 if name == "mindspeed" else 2)
    ]


def _is_at(package: Path, site: Path, *, depth: int) -> bool:
    # On another host nothing can be resolved; there the two come from one interpreter anyway.
    here = package.parents[depth - 1]
    return here == site or (here.exists() and here.resolve() == site.resolve())


def _name_path_file(pth: str) -> Problem:
    message = f"{pth}: a .pth file that changes which Megatron is imported"
    return Problem(code="E905", path=pth, message=message, hint=f"delete {pth}")
