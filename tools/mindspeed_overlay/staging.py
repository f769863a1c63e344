"""Put a tree or a file on disk at once: written beside its place, then swapped in.

Killed at any moment, the place holds the old one or the new one. What a killed run leaves beside
it is recognised by its name and a lock that died with the run, and the next run removes it.
"""

import ctypes
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from mindspeed_overlay.errors import ApplyError, Problem
from mindspeed_overlay.paths import explain_unsafe_path

if TYPE_CHECKING:
    from filelock import FileLock

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def stage_tree(files: Mapping[str, bytes], out_dir: Path, *, replace: bool = False) -> bool:
    """Make `out_dir` hold exactly `files`.

    Args:
        files: relative POSIX paths to contents.
        out_dir: a folder that is absent, empty or, with `replace`, holds anything. Its parent is
            made where it is missing.
        replace: whether what `out_dir` holds may be given up.

    Returns:
        Whether anything changed: False when `out_dir` held these files already.

    Raises:
        ApplyError: E520 a path is unsafe or used both as file and folder, E521 a symbolic link
            stands where the tree or a part of it goes, E522 `out_dir` is in use. Nothing changed.
        OSError: the disk refused (full, read-only). Nothing changed.
    """
    problems = [*_check_paths(files), *_check_place(out_dir)]
    if problems:
        raise ApplyError(*problems)
    parent = out_dir.parent
    parent.mkdir(parents=True, exist_ok=True)
    clean_leftovers(out_dir)
    if _holds_exactly(out_dir, files):
        return False
    if not replace and out_dir.is_dir() and any(out_dir.iterdir()):
        hint = "name an empty or a new folder"
        raise ApplyError(_refuse("E522", f"{out_dir} is not empty", str(out_dir), hint))
    with open_stage(out_dir) as stage:
        tree = stage / "tree"
        tree.mkdir()
        write_files(tree, files)
        if not os.path.lexists(out_dir):
            tree.rename(out_dir)
        else:
            _swap(tree, out_dir, stage / "old")
        _sync(parent)
    return True


def write_atomically(path: Path, data: bytes) -> None:
    """Replace `path` by a file of `data`, mode 0644; its folder must exist.

    Raises:
        OSError: the disk refused (full, read-only). Nothing changed.
    """
    clean_leftovers(path)
    with open_stage(path) as stage:
        temporary = stage / "file"
        temporary.write_bytes(data)
        temporary.chmod(0o644)
        _sync(temporary)
        temporary.replace(path)
        _sync(path.parent)


def write_if_changed(path: Path, data: bytes) -> None:
    """Make `path` a file of `data`, and remove what a killed run left beside it.

    Raises:
        OSError: the disk refused (full, read-only). Nothing changed.
    """
    clean_leftovers(path)
    if not (path.is_file() and path.read_bytes() == data):
        write_atomically(path, data)


def write_files(root: Path, files: Mapping[str, bytes]) -> None:
    """Write new files under `root` and flush them to disk.

    Raises:
        ApplyError: E521, a folder on the way to a file is a symbolic link.
        FileExistsError: a file stands there already.
    """
    folders = sorted({folder for path in files for folder in _list_parents(path)})
    for folder in folders:
        place = root / folder
        if place.is_symlink():
            message = f"{folder} is a symbolic link: nothing is written through it"
            raise ApplyError(_refuse("E521", message, folder, "remove the link"))
        place.mkdir(exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    for path, data in files.items():
        with os.fdopen(os.open(root / path, flags, 0o666), "wb") as file:
            file.write(data)
    # All are written before the first is waited for, so that the disk works once.
    for path in (*files, *folders, "."):
        _sync(root / path)


def _list_parents(path: str) -> Iterator[str]:
    parts = path.split("/")
    return ("/".join(parts[:k]) for k in range(1, len(parts)))


def _check_paths(files: Mapping[str, bytes]) -> Iterator[Problem]:
    for path in files:
        if unsafe := explain_unsafe_path(path):
            yield _refuse("E520", f"{path!r} is refused: {unsafe}", path)
        elif any(parent in files for parent in _list_parents(path)):
            yield _refuse("E520", f"{path!r} is refused: a folder on its way is a file", path)


def _check_place(out_dir: Path) -> Iterator[Problem]:
    hint = "name the folder that is meant"
    if out_dir.is_symlink():
        yield _refuse("E521", f"{out_dir} is a symbolic link", str(out_dir), hint)
    elif out_dir.exists() and not out_dir.is_dir():
        yield _refuse("E522", f"{out_dir} is not a folder", str(out_dir), hint)


def _refuse(code: str, message: str, path: str, hint: str = "") -> Problem:
    return Problem(code=code, message=message, path=path, hint=hint)


def _holds_exactly(out_dir: Path, files: Mapping[str, bytes]) -> bool:
    """Whether `out_dir` holds these files, these bytes and nothing else."""
    if not out_dir.is_dir():
        return False
    found: set[str] = set()
    for folder, _, names in os.walk(out_dir):
        for name in names:
            place = Path(folder, name)
            path = place.relative_to(out_dir).as_posix()
            wanted = files.get(path)
            if wanted is None or place.is_symlink() or place.stat().st_size != len(wanted):
                return False
            if place.read_bytes() != wanted:
                return False
            found.add(path)
    return len(found) == len(files)


def _prefix(out_dir: Path) -> str:
    return f".{out_dir.name}.staging-"


@contextmanager
def open_stage(out_dir: Path) -> Iterator[Path]:
    """A new folder beside `out_dir`, locked while this process lives, removed at the end."""
    stage, lock = _lock_new_stage(out_dir)
    try:
        yield stage
    finally:
        shutil.rmtree(stage, ignore_errors=True)
        lock.release()


def _lock_new_stage(out_dir: Path) -> tuple[Path, "FileLock"]:
    from filelock import FileLock, Timeout  # slow to import, and most runs write nothing

    while True:
        stage = Path(tempfile.mkdtemp(prefix=_prefix(out_dir), dir=out_dir.parent))
        lock = FileLock(stage / "lock")
        try:
            lock.acquire(timeout=0)
        except (Timeout, FileNotFoundError):
            continue
        # Another run may have taken the folder for a leftover before it was locked.
        if (stage / "lock").exists():
            return stage, lock
        lock.release()


def clean_leftovers(out_dir: Path) -> None:
    """Finish or remove what killed runs left beside `out_dir`."""
    stages = sorted(out_dir.parent.glob(_prefix(out_dir).replace("[", "[[]") + "*"))
    if not stages:
        return
    from filelock import FileLock, Timeout

    for stage in stages:
        lock = FileLock(stage / "lock")
        try:
            lock.acquire(timeout=0)
        except (Timeout, FileNotFoundError):
            continue
        try:
            if (stage / "old").is_dir() and not os.path.lexists(out_dir):
                (stage / "old").rename(out_dir)
            shutil.rmtree(stage, ignore_errors=True)
        finally:
            lock.release()


def _swap(new: Path, out_dir: Path, old: Path) -> None:
    """Exchange two folders in one step; `old` is used where the system has no such step."""
    if _exchange(new, out_dir):
        return
    # Between these two, `out_dir` is absent; a run killed there is finished by the next one.
    out_dir.rename(old)
    new.rename(out_dir)


def _exchange(first: Path, second: Path) -> bool:
    """Linux's atomic exchange; False where the system or the file system lacks it."""
    if not sys.platform.startswith("linux"):
        return False
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    paths = os.fsencode(first), os.fsencode(second)
    result = renameat2(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _RENAME_EXCHANGE)
    return bool(result == 0)


def _sync(path: Path) -> None:
    """Flush a file or, where the system can, a folder."""
    if path.is_dir() and os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
