"""A pinned commit out of a git repository: fetched with little history, read object by object.

Nothing is checked out, so attributes, filters, line-ending settings and hooks have no say. What is
read is proved by the pin's digest of the whole tree.
"""

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mindspeed_overlay.errors import MissingError, OverlayError, Problem, SourceError
from mindspeed_overlay.pins import Release
from mindspeed_overlay.source.cache import Cache, disk_error
from mindspeed_overlay.source.transport import (
    check_url,
    fetch,
    hide_password,
    init_bare,
    is_local,
    read_objects,
    require_git,
    run_git,
)
from mindspeed_overlay.tree import is_digested, lines_digest, sha256

SCRIPTS = "mindspeed/scripts"
_SYMLINK, _SUBMODULE = "120000", "160000"
_KEPT = re.compile(r"megatron/.+|[^/]+\.py|LICENSE")
_ENTRY_SCRIPT = re.compile(r"(pretrain|train)_\w+\.py")
_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+(\w+)[ \t]+import|import[ \t]+([\w., \t]+))", re.MULTILINE
)
_EVERYTHING = ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")
# What servers say that have no such commit to give, or give none by its name.
_REFUSAL = re.compile(
    r"not our ref|unadvertised object|couldn't find remote ref|does not allow request"
    r"|no such remote ref|not a valid object|bad object|unable to find"
)


@dataclass(frozen=True)
class CommitTree:
    """The parts of a commit that can be packaged: `megatron`, root scripts, and the licence.

    `tree_digest` covers every blob of the commit, also those that `files` leaves out.
    """

    origin: str
    files: dict[str, bytes]
    tree_digest: str

    def select(self, tree: str, *, training: bool) -> dict[str, bytes]:
        """The files of a "core" tree (what the digest covers), or of a "full" one.

        Full is every file below `megatron`, and the pretrain scripts with the root modules that
        they import, under mindspeed/scripts. `megatron` stays a namespace: no __init__.py.
        """
        if tree == "core":
            return {p: d for p, d in self.files.items() if is_digested(p, training=training)}
        packages = {p: d for p, d in self.files.items() if p.startswith("megatron/")}
        packages.pop("megatron/__init__.py", None)
        scripts = {f"{SCRIPTS}/{name}": self.files[name] for name in self._find_scripts()}
        return packages | scripts

    def _find_scripts(self) -> list[str]:
        found: set[str] = set()
        waiting = [name for name in self.files if _ENTRY_SCRIPT.fullmatch(name)]
        while waiting:
            name = waiting.pop()
            found.add(name)
            siblings = {f"{module}.py" for module in _find_imports(self.files[name])}
            waiting += (siblings & self.files.keys()) - found
        return sorted(found)


def open_commit(
    release: Release, where: str, *, cache: Cache, offline: bool = False, progress: bool = False
) -> CommitTree:
    """The tree of the release's commit, from the cache or fetched from `where`.

    Args:
        release: its commit says what to fetch; its tree digest must hold for what came.
        where: an address, a path, or "" for NVIDIA's repository.
        cache: keeps one small bare repository per commit.
        offline: use the cache, or a local `where`, but no network.
        progress: show a bar on a terminal.

    Raises:
        SourceError: E316 no such commit there, or none pinned; E317 the tree is another; E318 the
            address is refused.
        MissingError: E801 offline, E803 no room, E804 the fetch failed, E805 no git.
    """
    if not release.commit:
        message = f"{release.tag} is pinned from PyPI alone, without a commit"
        hint = "use --source pypi, or add its commit and tree-digest to the pin"
        raise SourceError(Problem(code="E316", message=message, hint=hint))
    url = check_url(where)
    require_git()
    repository = cache.root / "git" / release.commit
    if (tree := _read_verified(repository, release, url)) is not None:
        return tree
    if offline and not is_local(url):
        message = f"commit {release.commit} is not in the cache, and --offline forbids a fetch"
        hint = f"run `mindspeed-overlay pin verify {release.tag} --git nvidia` with a network"
        raise MissingError(Problem(code="E801", message=message, hint=hint))
    with cache.lock(release.commit), cache.scratch() as folder:
        # Another run may have fetched it while this one waited for the lock.
        if (tree := _read_verified(repository, release, url)) is not None:
            return tree
        fetched = fetch_commit(release, url, folder=folder, progress=progress)
        tree = read_commit(fetched, release.commit, origin=_origin(release, url))
        check_tree_digest(tree, release)
        shutil.rmtree(repository, ignore_errors=True)
        repository.parent.mkdir(parents=True, exist_ok=True)
        fetched.rename(repository)
        return tree


def check_tree_digest(tree: CommitTree, release: Release) -> None:
    """Refuse a tree that is not the pinned one (E317)."""
    if release.tree_digest and tree.tree_digest != release.tree_digest:
        message = (
            f"{tree.origin} is not {release.tag}: its tree digest is {tree.tree_digest}, "
            f"pinned is {release.tree_digest}"
        )
        raise SourceError(Problem(code="E317", message=message))


def fetch_commit(release: Release, url: str, *, folder: Path, progress: bool = False) -> Path:
    """Fetch the release's commit into a bare repository in `folder`, with little history.

    A server may refuse to give a bare commit; then its tag is fetched, then the tag with some
    history, then everything, and one commit of the result is kept.
    """
    title = f"{release.tag} from {hide_password(url)}" if progress else ""
    repository = folder / "commit"
    init_bare(repository)
    complaint = fetch(repository, url, ["--depth=1", release.commit], title=title)
    if not complaint and _has_commit(repository, release.commit):
        return repository
    tag = f"+refs/tags/{release.tag}:refs/tags/{release.tag}"
    deep = folder / "history"
    init_bare(deep)
    for arguments in (
        ["--depth=1", tag],
        ["--depth=100", tag],
        ["--depth=2147483647", *_EVERYTHING],
    ):
        if complaint and not _REFUSAL.search(complaint):
            raise _explain_fetch(complaint, url, folder)
        complaint = fetch(deep, url, arguments, title=title)
        if not complaint and _has_commit(deep, release.commit):
            own = ["-c", "protocol.version=2", "-c", "gc.auto=0", "fetch", "--no-tags", "--depth=1"]
            run_git(repository, [*own, str(deep), release.commit])
            return repository
    if complaint and not _REFUSAL.search(complaint):
        raise _explain_fetch(complaint, url, folder)
    message = (
        f"{hide_password(url)} has no commit {release.commit}, which {release.tag} is pinned to"
    )
    hint = "is it a fork, a shallow clone, or another repository?"
    raise SourceError(Problem(code="E316", message=message, hint=hint))


def resolve_tag(url: str, tag: str, *, folder: Path) -> str:
    """The commit that a tag stands for at `url`, "" where there is no such tag.

    Raises:
        MissingError: E804, the repository cannot be reached.
    """
    repository = folder / "tag"
    init_bare(repository)
    complaint = fetch(repository, url, ["--depth=1", f"+refs/tags/{tag}:refs/tags/{tag}"])
    if complaint and _REFUSAL.search(complaint):
        return ""
    if complaint:
        raise _explain_fetch(complaint, url, folder)
    return run_git(repository, ["rev-parse", f"refs/tags/{tag}^{{commit}}"]).decode().strip()


def read_commit(repository: Path, commit: str, *, origin: str) -> CommitTree:
    """Read a commit's tree object by object.

    Raises:
        SourceError: E317, a path in the tree is unsafe.
    """
    listing = run_git(repository, ["ls-tree", "-r", "-z", "--full-tree", commit])
    files, hashes = {}, {}
    with read_objects(repository) as objects:
        for mode, object_id, path in _parse_listing(listing, origin):
            if mode == _SUBMODULE:
                continue
            data = objects.get_object_data(object_id)[3]
            hashes[path] = sha256(data)
            if mode != _SYMLINK and _KEPT.fullmatch(path):
                files[path] = data
    return CommitTree(origin, files, lines_digest(hashes))


def _parse_listing(listing: bytes, origin: str) -> Iterator[tuple[str, str, str]]:
    for entry in listing.split(b"\0")[:-1]:
        head, _, name = entry.partition(b"\t")
        mode, _, object_id = head.decode("ascii").split(" ")
        path = name.decode("utf-8", "surrogateescape")
        parts = path.lower().split("/")
        # sha256sum would escape these, and no file system of ours should see them.
        if not path.isprintable() or "\\" in path or {"", ".", "..", ".git"} & set(parts):
            message = f"{origin} holds the unsafe path {name!r}"
            raise SourceError(Problem(code="E317", message=message))
        yield mode, object_id, path


def _read_verified(repository: Path, release: Release, url: str) -> CommitTree | None:
    """The cached tree, or None where there is none, or none that is sound."""
    import git

    if not repository.is_dir():
        return None
    try:
        tree = read_commit(repository, release.commit, origin=_origin(release, url))
        check_tree_digest(tree, release)
    except (OverlayError, git.GitError, ValueError, OSError):
        return None
    return tree


def _has_commit(repository: Path, commit: str) -> bool:
    import git

    try:
        return run_git(repository, ["cat-file", "-t", commit]).strip() == b"commit"
    except git.GitCommandError:
        return False


def _find_imports(data: bytes) -> Iterator[str]:
    for match in _IMPORT.finditer(data.decode("utf-8", "replace")):
        names = [match[1]] if match[1] else match[2].split(",")
        yield from (name.strip().split(".")[0].split(" ")[0] for name in names)


def _origin(release: Release, url: str) -> str:
    return f"git: {hide_password(url)} at {release.commit}"


def _explain_fetch(complaint: str, url: str, folder: Path) -> OverlayError:
    if "No space left on device" in complaint:
        return disk_error(folder.parent.parent, "no space left on device")
    lines = [line for line in complaint.splitlines() if line.strip()]
    said = "; ".join([line for line in lines if "fatal:" in line or "error:" in line] or lines[-3:])
    message = f"cannot fetch from {hide_password(url)}: {said}"
    hint = "proxy, credentials and ssh are your git's own; `git ls-remote` shows whether they serve"
    return MissingError(Problem(code="E804", message=message, hint=hint))
