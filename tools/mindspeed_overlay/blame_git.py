"""Blame in git repositories: the tree that `apply` made, and upstream's own history."""

import re
from collections.abc import Iterator
from pathlib import Path

from mindspeed_overlay.blame import Blamed, Origin, make_origins
from mindspeed_overlay.errors import Problem, UsageError
from mindspeed_overlay.patch import split_lines
from mindspeed_overlay.patch_diff import diff_lines
from mindspeed_overlay.source.transport import run_git
from mindspeed_overlay.worktree import read_committed, read_worktree

_HEAD = re.compile(rb"([0-9a-f]{40}) (\d+) (\d+)(?: \d+)?")
_EDITED = "edited since `apply`"


def find_repository(path: Path) -> Path | None:
    """The repository above a file."""
    return next((p for p in path.absolute().parents if (p / ".git").is_dir()), None)


def blame_repository(root: Path, path: str) -> Blamed:
    """The lines of a file in a tree that `apply` made, as it is on disk now.

    Raises:
        UsageError: E204, the tree is not one of `apply`, or had no such file.
    """
    made = read_worktree(root)
    before = read_committed(root, made.head, [path]).get(path)
    if before is None:
        message = f"{path} was not there when `apply` made {root}"
        raise UsageError(Problem(code="E204", path=path, message=message))
    owners = {
        line: (r.overlay, r.patch, r.hunk)
        for r in made.lines.get(path, ())
        for line in range(r.first, r.last + 1)
    }
    known = make_origins(before, owners, whole=made.own.get(path, ""), release=made.release)
    return Blamed(path, made.release, tuple(_carry(known, before, (root / path).read_bytes())))


def _carry(known: list[Origin], before: bytes, after: bytes) -> Iterator[Origin]:
    """The origins of a file's lines after somebody edited it."""
    lines = split_lines(after)
    i = j = 0
    end = (len(known), len(known), len(lines), len(lines))
    for i1, i2, j1, j2 in (*diff_lines(split_lines(before), lines), end):
        for k in range(i1 - i):
            yield Origin(**{**known[i + k].__dict__, "line": j + k + 1})
        for at in range(j1, j2):
            text = lines[at].decode(errors="replace").rstrip("\r\n")
            yield Origin(at + 1, text, upstream=_EDITED)
        i, j = i2, j2


def blame_upstream(repository: Path, commit: str, path: str) -> dict[int, str]:
    """Line of a pristine file to the upstream commit and its subject; empty without the history."""
    import git

    try:
        output = run_git(repository, ["blame", "--porcelain", commit, "--", path])
    except (git.GitCommandError, OSError):
        return {}
    found: dict[int, str] = {}
    subjects: dict[str, str] = {}
    name, line = "", 0
    for raw in output.split(b"\n"):
        if match := _HEAD.fullmatch(raw):
            name, line = match[1].decode(), int(match[3])
        elif raw.startswith(b"summary "):
            subjects[name] = raw.removeprefix(b"summary ").decode(errors="replace")
        elif raw.startswith(b"\t"):
            found[line] = f"{name[:10]} {subjects.get(name, '')}".strip()
    return found


def list_commits(
    repository: Path, since: str, to: str, path: str, lines: tuple[int, int]
) -> list[str]:
    """The upstream commits between two that changed some lines of a file, newest first.

    Args:
        since: a commit that is left out, with all before it.
        to: the commit whose file `lines` counts in, from 1.

    Returns:
        `hash subject` each; none without the history.
    """
    import git

    place = f"{lines[0]},{lines[1]}:{path}"
    words = ["log", "-s", "--format=%h %s", f"-L{place}", f"{since}..{to}"]
    try:
        return run_git(repository, words).decode(errors="replace").splitlines()
    except (git.GitCommandError, OSError):
        return []
