"""Downloads by content: a file is stored under its SHA-256, so a name can never lie.

An entry appears by one rename and is verified whenever it is used; one that has rotted is fetched
anew. A lock per entry lets two runs share one download.
"""

import errno
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mindspeed_overlay.errors import MissingError, Problem, SourceError

_ABANDONED_S = 24 * 3600
ENV = "MINDSPEED_OVERLAY_CACHE"


def find_cache_dir(given: Path | None = None) -> Path:
    """The cache folder: `given`, else $MINDSPEED_OVERLAY_CACHE, else the user's cache folder."""
    if given is not None:
        return given.absolute()
    if os.environ.get(ENV):
        return Path(os.environ[ENV]).expanduser().absolute()
    from platformdirs import user_cache_path

    return user_cache_path("mindspeed-overlay", appauthor=False)


class Cache:
    """Files under their hashes, and git repositories under their commits."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def find(self, sha256: str, filename: str) -> Path | None:
        """The entry, if it is there and sound."""
        path = self._entry(sha256) / filename
        try:
            with path.open("rb") as file:
                sound = hashlib.file_digest(file, "sha256").hexdigest() == sha256
        except OSError:
            return None
        return path if sound else None

    def get(self, sha256: str, filename: str, fetch: Callable[[Path], Path]) -> Path:
        """The entry, fetched first where it is missing or has rotted.

        Args:
            sha256: what the bytes must hash to.
            filename: the name of the entry's file.
            fetch: downloads into the empty folder that it is given, and returns the file.

        Raises:
            SourceError: E311, the fetched bytes have another hash; nothing is kept.
            MissingError: E803, the disk is full or not writable; nothing is kept.
        """
        if path := self.find(sha256, filename):
            return path
        with self.lock(sha256), self.scratch() as folder:
            # Another run may have finished it while this one waited for the lock.
            if path := self.find(sha256, filename):
                return path
            fetched = fetch(folder)
            with fetched.open("rb") as file:
                actual = hashlib.file_digest(file, "sha256").hexdigest()
            if actual != sha256:
                message = f"{filename} has SHA-256 {actual}, pinned is {sha256}"
                hint = "the index, mirror or network serves other bytes; none of them were used"
                raise SourceError(Problem(code="E311", message=message, hint=hint))
            return self._store(fetched, self._entry(sha256) / filename)

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Hold the lock `name` against other runs."""
        from filelock import FileLock

        with explain_write_errors(self.root):
            (self.root / "locks").mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.root / "locks" / f"{name}.lock")
            lock.acquire()
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A folder on the cache's own file system, gone afterwards."""
        with explain_write_errors(self.root):
            (self.root / "tmp").mkdir(parents=True, exist_ok=True)
            self._sweep()
            folder = Path(tempfile.mkdtemp(dir=self.root / "tmp"))
        try:
            with explain_write_errors(self.root):
                yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _sweep(self) -> None:
        """Remove what killed runs left behind, a day later."""
        for folder in (self.root / "tmp").iterdir():
            with suppress(OSError):
                if folder.stat().st_mtime < time.time() - _ABANDONED_S:
                    shutil.rmtree(folder)

    def _entry(self, sha256: str) -> Path:
        return self.root / "sha256" / sha256

    def _store(self, fetched: Path, target: Path) -> Path:
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(fetched, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        fetched.replace(target)
        return target


@contextmanager
def explain_write_errors(root: Path) -> Iterator[None]:
    """Turn a full or read-only disk into an error that names the cache folder."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        raise disk_error(root, error.strerror or str(error)) from error


def disk_error(root: Path, reason: str) -> MissingError:
    """E803: the cache at `root` cannot be written."""
    message = f"cannot write the cache {root}: {reason}"
    hint = f"make room, or set {ENV} to a folder elsewhere"
    return MissingError(Problem(code="E803", message=message, path=str(root), hint=hint))
