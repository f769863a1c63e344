"""The releases that overlays are carried between, as trees in memory.

A pinned release comes from the source cache and is proved by its pin. Any other commit comes out of
a local git repository, where it is what git says it is.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from mindspeed_overlay.errors import Problem, SourceError, UsageError
from mindspeed_overlay.pins import Pins, Release
from mindspeed_overlay.source.transport import read_objects, run_git

_FLOOR = re.compile(rb"requires-python\s*=\s*[\"']>=\s*(\d+\.\d+)")
_RELEASE = re.compile(r"core_(?:v|r)(\d+)\.(\d+)\.(\d+)((?:rc|\.post)?\d*)")


@dataclass(frozen=True, eq=False)
class Tree:
    """One release: its tag, its files, and the oldest Python it runs on."""

    release: Release
    kind: str
    load: Callable[[], Mapping[str, bytes]] = field(repr=False)

    @property
    def tag(self) -> str:
        """Its tag."""
        return self.release.tag

    @cached_property
    def files(self) -> Mapping[str, bytes]:
        """Paths to contents, read once."""
        return self.load()


def open_pinned(release: Release, *, spec: str = "pypi", offline: bool = False) -> Tree:
    """A pinned release; the full tree where the source is git."""
    from mindspeed_overlay.source import open_source

    kind = "full" if spec.startswith("git") else "core"

    def load() -> Mapping[str, bytes]:
        python = release.python.removeprefix(">=")
        source = open_source(release, spec=spec, tree=kind, offline=offline, python=python)
        return source.files

    return Tree(release, kind, load)


def open_commit(repository: Path, name: str) -> Tree:
    """Any commit of a local git repository, by any name that git knows it by.

    Raises:
        SourceError: E316, there is no such commit.
    """
    import git

    try:
        commit = run_git(repository, ["rev-parse", "--verify", "--quiet", f"{name}^{{commit}}"])
    except git.GitCommandError as error:
        message = f"{repository} has no commit {name}"
        raise SourceError(Problem(code="E316", message=message)) from error
    found = commit.decode().strip()

    def load() -> Mapping[str, bytes]:
        return _read_commit(repository, found)

    pyproject = _read_blob(repository, f"{found}:pyproject.toml")
    floor = _FLOOR.search(pyproject)
    release = Release(
        tag=name,
        commit=found,
        version=name.removeprefix("core_v"),
        python=f">={floor[1].decode()}" if floor else ">=3.10",
        source_digest="",
        tree_digest="",
        wheels=(),
        other_digests=(),
        yanked="",
        license="",
        training=True,
    )
    return Tree(release, "full", load)


def _read_blob(repository: Path, name: str) -> bytes:
    import git

    try:
        return run_git(repository, ["cat-file", "blob", name])
    except git.GitCommandError:
        return b""


def _read_commit(repository: Path, commit: str) -> dict[str, bytes]:
    listing = run_git(repository, ["ls-tree", "-r", "-z", "--full-tree", commit])
    files: dict[str, bytes] = {}
    with read_objects(repository) as objects:
        for entry in listing.split(b"\0")[:-1]:
            head, _, name = entry.partition(b"\t")
            mode, kind, blob = head.decode("ascii").split()
            path = name.decode("utf-8", "surrogateescape")
            # Scripts and tests beside the packages can be patched too; data can't.
            if mode != "120000" and kind == "blob" and _may_be_patched(path):
                files[path] = objects.get_object_data(blob)[3]
    return files


def _may_be_patched(path: str) -> bool:
    return path.endswith((".py", ".sh", ".toml", ".txt", ".cpp", ".cu", ".h", "Makefile", ".cfg"))


def choose_steps(pins: Pins, first: str, last: str) -> tuple[Release, ...]:
    """The pinned releases from `first` to `last`.

    Raises:
        UsageError: E221, `last` is older.
    """
    if pins.index(last) < pins.index(first):
        message = f"--to {last} is older than --from {first}; overlays are carried forward"
        raise UsageError(Problem(code="E221", message=message))
    return pins.between(first, last)


def list_tags_between(repository: Path, first: str, last: str) -> list[str]:
    """The final releases tagged after `first` and before `last`, one for each minor version."""
    bounds = [_RELEASE.fullmatch(name) for name in (first, last)]
    if not all(bounds):
        return []
    low, high = (tuple(int(part) for part in bound.groups()[:3]) for bound in bounds if bound)
    found: dict[tuple[int, ...], str] = {}
    for tag in run_git(repository, ["tag", "--list", "core_v*"]).decode().split():
        match = _RELEASE.fullmatch(tag)
        if match is None or match[4]:
            continue
        version = tuple(int(part) for part in match.groups()[:3])
        if low < version < high and version[2] == 0 and version[:2] != high[:2]:
            found[version] = tag
    return [found[version] for version in sorted(found)]


def carries(tree: Tree, path: str) -> bool:
    """Whether a tree of this kind and release holds the package of `path` at all."""
    if tree.kind == "full" or path.startswith("megatron/core/"):
        return True
    return path.startswith("megatron/training/") and tree.release.training


def read_version(tag: str) -> tuple[int, int, int, int, int]:
    """A sort key for tags: by version, candidates before releases, other names last."""
    match = _RELEASE.fullmatch(tag)
    if match is None:
        return (1 << 30, 0, 0, 0, 0)
    major, minor, micro = (int(part) for part in match.groups()[:3])
    rest = match[4]
    number = int(re.sub(r"\D", "", rest) or 0)
    return (major, minor, micro, 0 if rest.startswith("rc") else 1, number)
