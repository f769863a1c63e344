"""What a site-packages holds of Megatron, and whether every file of it is explained.

Known states: nothing, an unmodified pinned release, a build of this tool, and a copy of either
whose changed and added files all stand in the history of a git repository. Bytecode is nobody's.
"""

import csv
import json
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindspeed_overlay.errors import MissingError, Problem
from mindspeed_overlay.pins import Pins, Release
from mindspeed_overlay.source.wheelfile import is_helpers
from mindspeed_overlay.tree import git_blob_id, is_digested, lines_digest, sha256
from mindspeed_overlay.verify import check_records, decode_record_hash
from mindspeed_overlay.wheelname import BUILD_JSON


@dataclass(frozen=True)
class SiteState:
    """What is installed.

    Attributes:
        kind: "absent", "pristine", "build", "patched" or "unknown".
        version: of the installed distribution.
        items: top-level paths under site-packages that belong to it, such as `megatron/core`.
        unexplained: files that nothing explains.
        by_git: files that the git repository explains.
    """

    kind: str
    version: str
    items: tuple[str, ...]
    unexplained: tuple[str, ...] = ()
    by_git: tuple[str, ...] = ()


def read_state(site: Path, pins: Pins, *, repository: Path | None = None) -> SiteState:
    """Find out what `site` holds.

    Args:
        site: a site-packages folder.
        pins: the releases that are known.
        repository: a git repository that may explain files, in any of its objects.

    Raises:
        MissingError: E805 or E812, there is no git, or no such repository.
    """
    infos = sorted(site.glob("megatron_core-*.dist-info"))
    items = find_items(site, infos)
    if not items:
        return SiteState("absent", "", ())
    files = {path: (site / path).read_bytes() for path in list_files(site, items)}
    version = infos[0].name.removesuffix(".dist-info").split("-")[1] if infos else ""
    links = [path for path in files if (site / path).is_symlink()]
    record = _read_record(files, infos)
    wrong = sorted({*_find_unexplained(files, record, infos, pins, version), *links})
    kind = "build" if BUILD_JSON in files else "pristine"
    if not wrong:
        return SiteState(kind, version, items)
    known = _find_in_git(repository, {path: files[path] for path in wrong}) if repository else set()
    unexplained = tuple(path for path in wrong if path not in known or path in links)
    kind = "unknown" if unexplained else "patched"
    return SiteState(kind, version, items, unexplained, tuple(sorted(known)))


def find_items(site: Path, infos: Iterable[Path]) -> tuple[str, ...]:
    """The paths right under `site` or `site/megatron` that belong to megatron-core."""
    found = {info.name for info in infos}
    for info in infos:
        record = info / "RECORD"
        text = record.read_text("utf-8", errors="replace") if record.is_file() else ""
        found |= {item_of(row[0]) for row in csv.reader(text.splitlines()) if row}
    found |= {"megatron/core", "megatron/__init__.py", "mindspeed"}
    return tuple(sorted(n for n in found if not n.startswith("..") and (site / n).exists()))


def item_of(path: str) -> str:
    """The item that a packaged path is in: `megatron/core`, `mindspeed`, `pretrain_gpt.py`."""
    parts = path.split("/")
    return "/".join(parts[:2]) if parts[0] == "megatron" else parts[0]


def list_files(site: Path, items: Iterable[str]) -> Iterator[str]:
    """Every file of the items but bytecode, relative to `site`."""
    for item in items:
        root = site / item
        for place in sorted(root.rglob("*")) if root.is_dir() else [root]:
            if (place.is_file() or place.is_symlink()) and "__pycache__" not in place.parts:
                yield place.relative_to(site).as_posix()


def _read_record(files: dict[str, bytes], infos: list[Path]) -> dict[str, str]:
    if not infos:
        return {}
    text = files.get(f"{infos[0].name}/RECORD", b"").decode("utf-8", "replace")
    return {row[0]: row[1] for row in csv.reader(text.splitlines()) if len(row) > 1}


def _find_unexplained(
    files: dict[str, bytes], record: dict[str, str], infos: list[Path], pins: Pins, version: str
) -> Iterator[str]:
    """Files that neither a build record nor a pin explains."""
    if len(infos) != 1:
        yield from (path for path in files)
        return
    if BUILD_JSON in files:
        hashes = {path: sha256(data) for path, data in files.items()}
        names = (f"{infos[0].name}/RECORD", BUILD_JSON)
        texts = {path: files[path] for path in names if path in files}
        _, problems = check_records(hashes, texts, installed=True)
        yield from (problem.path for problem in problems if problem.path in files)
        if any(problem.path not in files for problem in problems):
            yield from (p.path for p in problems)
        return
    release = next((r for r in pins.releases if r.version == version), None)
    yield from _compare_with_pin(files, record, release, infos[0].name)


def _compare_with_pin(
    files: dict[str, bytes], record: dict[str, str], release: Release | None, info: str
) -> Iterator[str]:
    """An unmodified release is one whose RECORD has the hashes of the pin.

    Anyone can write a RECORD; the source digest over its hashes says whether it is the release's.
    What the digest does not cover (the compiled helpers) is taken at the word of a genuine RECORD.
    """
    hashes = {path: decode_record_hash(value) for path, value in record.items()}
    if release is not None:
        covered = {p: h for p, h in hashes.items() if is_digested(p, training=release.training)}
    genuine = release is not None and lines_digest(covered) in release.digests
    for path, data in files.items():
        if path.startswith(f"{info}/"):
            continue
        known = is_helpers(path) or is_digested(path, training=True)
        if not (genuine and known and hashes.get(path) == sha256(data)):
            yield path
    yield from (path for path in record if path not in files and "__pycache__" not in path)


def _find_in_git(repository: Path, files: dict[str, bytes]) -> set[str]:
    """The files whose contents are objects of a repository."""
    ids = {git_blob_id(data): path for path, data in files.items()}
    command = ["git", "-C", str(repository), "cat-file", "--batch-check"]
    try:
        done = subprocess.run(
            command, input="\n".join(ids) + "\n", capture_output=True, text=True, check=True
        )
    except FileNotFoundError as error:
        hint = "install git 2.28 or newer"
        problem = Problem(code="E805", message="there is no git to run", hint=hint)
        raise MissingError(problem) from error
    except subprocess.CalledProcessError as error:
        message = f"{repository} is no git repository: {error.stderr.strip()}"
        raise MissingError(Problem(code="E812", path=str(repository), message=message)) from error
    found = {
        line.split()[0] for line in done.stdout.splitlines() if line.endswith(tuple("0123456789"))
    }
    return {path for path in files if git_blob_id(files[path]) in found}


def describe(state: SiteState) -> dict[str, Any]:
    """For machines."""
    return json.loads(json.dumps(state.__dict__))  # type: ignore[no-any-return]
