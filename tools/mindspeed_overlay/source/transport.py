"""Running git for a source: what moves the bytes is the user's, what they become is not.

Fetching honours the user's configuration (proxy, insteadOf, credentials, ssh command, CA); reading
sees no configuration at all, and no GIT_* variable of the caller reaches either.
"""

import errno
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, BinaryIO

from mindspeed_overlay.errors import MissingError, Problem, SourceError
from mindspeed_overlay.source.progress import Report, show_bar

if TYPE_CHECKING:
    from git import Git

NVIDIA_URL = "https://github.com/NVIDIA/Megatron-LM.git"
SCHEMES = ("file", "git", "http", "https", "ssh")
# The caller's variables that say how to reach a server; all other GIT_* are dropped.
_REACH = re.compile(
    r"GIT_(SSH\w*|ASKPASS|PROXY_\w+|SSL_\w+|HTTP_\w+|TERMINAL_PROMPT|EXEC_PATH"
    r"|CONFIG_(GLOBAL|SYSTEM|NOSYSTEM|COUNT|PARAMETERS|KEY_\d+|VALUE_\d+))"
)
_NEUTRAL = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
}
_HERMETIC = {"LC_ALL": "C", "GIT_NO_REPLACE_OBJECTS": "1", "GIT_NO_LAZY_FETCH": "1"}
# Settings of the user's that would change what a fetch stores or runs.
_OVERRIDES = {
    "core.hooksPath": os.devnull,
    "core.fsmonitor": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "fetch.writeCommitGraph": "false",
    "fetch.recurseSubmodules": "false",
    "fetch.unpackLimit": "1",
    "fetch.fsckObjects": "false",
    "transfer.fsckObjects": "false",
}


def check_url(where: str) -> str:
    """The address that git is given for "git:`where`"; "" is NVIDIA's repository.

    Raises:
        SourceError: E318, an option, a command in disguise (`ext::`), an unknown scheme, or a local
            path that does not exist.
    """
    if not where:
        return NVIDIA_URL
    scheme, separator, _ = where.partition("://")
    if where.startswith("-") or re.match(r"[\w+.-]*::", where) or not where.isprintable():
        raise _refuse(where, "it could make git run a command")
    if separator:
        if scheme.lower() not in SCHEMES:
            raise _refuse(where, f"the scheme is none of {', '.join(SCHEMES)}")
        return where
    path = Path(where).expanduser()
    if path.exists():
        return str(path.absolute())
    if re.match(r"[^/]+:", where):
        return where
    raise _refuse(where, "there is no such folder")


def is_local(url: str) -> bool:
    """Whether fetching from `url` needs no network."""
    return url.startswith(("/", "file://"))


def hide_password(url: str) -> str:
    """`url` without the credentials that it may carry."""
    return re.sub(r"(?<=://)[^/@]*:[^/@]*@", "", url)


def require_git() -> None:
    """Refuse to go on without a git program.

    Raises:
        MissingError: E805.
    """
    if shutil.which("git") is None:
        hint = "install git, or use --source pypi"
        raise MissingError(Problem(code="E805", message="there is no git to run", hint=hint))


def init_bare(folder: Path) -> None:
    """Make an empty bare repository, whatever templates and formats the user prefers."""
    run_git(folder.parent, ["init", "--bare", "--template=", "--object-format=sha1", str(folder)])


def run_git(folder: Path, arguments: list[str], *, stdin: BinaryIO | None = None) -> bytes:
    """Run a git command that sees no configuration but the repository's own.

    Raises:
        GitCommandError: from GitPython, the command failed.
        OSError: the disk is full, which git says in words only.
    """
    import git

    with _environment(_NEUTRAL):
        try:
            output = git.Git(folder).execute(
                ["git", *arguments], istream=stdin, stdout_as_string=False
            )
        except git.GitCommandError as error:
            if "No space left" in str(error.stderr):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
            raise
    return output if isinstance(output, bytes) else b""


@contextmanager
def read_objects(folder: Path) -> Iterator["Git"]:
    """A reader of the objects of the repository `folder`, without configuration."""
    import git

    with _environment(_NEUTRAL):
        reader = git.Git(folder)
        try:
            yield reader
        finally:
            reader.clear_cache()


def fetch(folder: Path, url: str, arguments: list[str], *, title: str = "") -> str:
    """Fetch into the bare repository `folder`; returns what git complained about, or "".

    Args:
        folder: where to.
        url: as `check_url` returned it.
        arguments: depth and refspecs.
        title: of the bar; empty for none.
    """
    import git

    command = ["git"]
    for key, value in _OVERRIDES.items():
        command += ["-c", f"{key}={value}"]
    command += ["fetch", "--progress", "--no-tags", "--no-recurse-submodules"]
    split = next((n for n, word in enumerate(arguments) if not word.startswith("-")), None)
    command += [*arguments[:split], "--", url, *arguments[split:]]
    reach = {"GIT_ALLOW_PROTOCOL": ":".join(SCHEMES)}
    if not sys.stdin or not sys.stdin.isatty():
        reach["GIT_TERMINAL_PROMPT"] = "0"
    with show_bar(title, visible=bool(title)) as report, _environment(reach, keep=_REACH):
        process = git.Git(folder).execute(command, as_process=True)
        said = _follow(process.stderr, report)
        try:
            process.wait()
        except git.GitCommandError as error:
            complaint = "\n".join(said) or f"git ended with status {error.status}"
            return complaint.replace(url, hide_password(url))
    return ""


def _follow(stream: IO[bytes], report: Report) -> list[str]:
    """Report a fetch's percentages as they come; returns its other lines."""
    said, rest = [], b""
    while chunk := stream.read1(65536):  # type: ignore[attr-defined]  # a BufferedReader
        *lines, rest = re.split(rb"[\r\n]", rest + chunk)
        for line in lines:
            if match := re.search(rb"\d+% \((\d+)/(\d+)\)", line):
                report(int(match[1]), int(match[2]))
            elif text := line.decode("utf-8", "replace").strip():
                said.append(text)
    return said


@contextmanager
def _environment(
    settings: dict[str, str], *, keep: re.Pattern[str] | None = None
) -> Iterator[None]:
    """The process environment without the caller's GIT_*, for GitPython hands on all of it."""
    saved = dict(os.environ)
    kept = {
        name: value
        for name, value in saved.items()
        if not name.startswith("GIT_") or (keep and keep.fullmatch(name))
    }
    try:
        os.environ.clear()
        os.environ.update(kept | _HERMETIC | settings)
        yield
    finally:
        os.environ.clear()
        os.environ.update(saved)


def _refuse(where: str, why: str) -> SourceError:
    message = f"git source {hide_password(where)!r} is refused: {why}"
    hint = "give an https, ssh, git or file address, or the path of a repository"
    return SourceError(Problem(code="E318", message=message, hint=hint))
