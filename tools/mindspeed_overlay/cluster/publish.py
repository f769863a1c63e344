"""Publish wheels into a folder that is a package index, served by anything that serves files.

Files come first and pages last, each in one step, under a lock: a reader, or a kill at any moment,
sees an index whose every link works. Nothing published is ever changed or removed; a build that
should not be used any more is yanked.
"""

import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from filelock import FileLock

from mindspeed_overlay.cluster.index import Entry, read_entries, write_constraints, write_pages
from mindspeed_overlay.errors import PackagingError, Problem, UsageError
from mindspeed_overlay.staging import clean_leftovers, write_atomically
from mindspeed_overlay.tree import sha256

_NAME = re.compile(r"[A-Za-z0-9._]+-[A-Za-z0-9._+!]+(-[A-Za-z0-9._]+){3,4}\.whl")
_STAGE = re.compile(r"\.(.+)\.staging-[^/]*")


@dataclass(frozen=True)
class Upload:
    """A wheel to publish: its bytes and what a page says of it."""

    entry: Entry
    data: bytes
    metadata: bytes


def read_upload(path: Path) -> Upload:
    """Read a wheel, of ours or a dependency.

    Raises:
        PackagingError: E711, it is no wheel.
    """
    try:
        data = path.read_bytes()
        with zipfile.ZipFile(path) as archive:
            if archive.testzip() is not None:
                raise ValueError("a member is corrupt")
            names = [n for n in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", n)]
            metadata = archive.read(names[0])
        if not _NAME.fullmatch(path.name):
            raise ValueError("its name is not that of a wheel")
    except (OSError, ValueError, IndexError, zipfile.BadZipFile) as error:
        message = f"{path} is no wheel that can be published: {error}"
        raise PackagingError(Problem(code="E711", path=str(path), message=message)) from error
    head = metadata.partition(b"\n\n")[0].decode("utf-8", "replace")
    needs = re.search(r"^Requires-Python:[ \t]*(.*?)\r?$", head, re.MULTILINE)
    entry = Entry(path.name, sha256(data), len(data), sha256(metadata), needs[1] if needs else "")
    return Upload(entry, data, metadata)


def publish(
    index: Path, uploads: Sequence[Upload], *, extras: Mapping[str, bytes] | None = None
) -> list[Entry]:
    """Add wheels to the index at `index`, which is made where it is missing.

    Args:
        index: its root folder.
        uploads: what to add; what is there with the same bytes is left alone.
        extras: more files by path under the root (locks, statements), written before the pages.

    Returns:
        The entries of the uploads as the index now has them.

    Raises:
        PackagingError: E712 a file of that name has other bytes there, E713 the disk refused. The
            index then is what it was, or has files that no page names yet.
    """
    with _open_index(index) as known:
        clashes = [u.entry for u in uploads if _clashes(u.entry, known)]
        if clashes:
            raise PackagingError(*map(_refuse_clash, clashes))
        for upload in uploads:
            _put(index / "files" / f"{upload.entry.filename}.metadata", upload.metadata)
            _put(index / "files" / upload.entry.filename, upload.data)
        entries = {**{u.entry.filename: u.entry for u in uploads}, **known}
        for path, data in (extras or {}).items():
            _put(index / path, data)
        ours = {u.entry.version for u in uploads if u.entry.project == "megatron-core"}
        for version in sorted(ours):
            found = [e for e in entries.values() if _is_build(e, version)]
            name = f"constraints/megatron-core-{version}.txt"
            _put(index / name, write_constraints(found))
        _write_pages(index, entries.values())
        return [entries[u.entry.filename] for u in uploads]


def yank(index: Path, version: str, *, reason: str) -> list[Entry]:
    """Mark every file of a megatron-core version as not to be chosen; "" takes that back.

    Raises:
        UsageError: E214, the index has no such version.
    """
    with _open_index(index) as known:
        marked = {
            name: replace(entry, yanked=reason)
            for name, entry in known.items()
            if _is_build(entry, version)
        }
        if not marked:
            have = ", ".join(sorted({e.version for e in known.values()})) or "none"
            message = f"{index} has no megatron-core {version}; it has {have}"
            raise UsageError(Problem(code="E214", path=str(index), message=message))
        _write_pages(index, {**known, **marked}.values())
        return list(marked.values())


def _is_build(entry: Entry, version: str) -> bool:
    return entry.project == "megatron-core" and entry.version == version


@contextmanager
def _open_index(index: Path) -> Iterator[dict[str, Entry]]:
    """Hold the index against other publishers; gives its entries by file name."""
    try:
        for folder in ("files", "simple", "constraints"):
            (index / folder).mkdir(parents=True, exist_ok=True)
        with FileLock(index / ".publish.lock"):
            _sweep(index)
            yield _read_index(index)
    except OSError as error:
        message = f"cannot write the index {index}: {error.strerror or error}"
        hint = "make room, or see who owns the folder; what was published before is unharmed"
        raise PackagingError(
            Problem(code="E713", path=str(index), message=message, hint=hint)
        ) from error


def _sweep(index: Path) -> None:
    """Remove what killed publishers left behind."""
    for stage in index.rglob(".*.staging-*"):
        if match := _STAGE.fullmatch(stage.name):
            clean_leftovers(stage.with_name(match[1]))


def _read_index(index: Path) -> dict[str, Entry]:
    found: dict[str, Entry] = {}
    for page in sorted(index.glob("simple/*/index.json")):
        try:
            found |= {entry.filename: entry for entry in read_entries(page.read_bytes())}
        except (ValueError, KeyError, TypeError) as error:
            message = f"{page} is no page that this tool wrote: {error!r}"
            hint = "give a folder of its own with --index"
            raise PackagingError(
                Problem(code="E714", path=str(page), message=message, hint=hint)
            ) from error
    return found


def _clashes(entry: Entry, known: Mapping[str, Entry]) -> bool:
    before = known.get(entry.filename)
    return before is not None and before.sha256 != entry.sha256


def _refuse_clash(entry: Entry) -> Problem:
    message = f"{entry.filename} is published with other bytes; a published file never changes"
    hint = "equal inputs give equal bytes: build it anew with --locked, or raise the revision"
    return Problem(code="E712", path=entry.filename, message=message, hint=hint)


def _write_pages(index: Path, entries: Iterable[Entry]) -> None:
    for path, data in write_pages(entries).items():
        _put(index / path, data)


def _put(target: Path, data: bytes) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if not (target.is_file() and target.read_bytes() == data):
        write_atomically(target, data)
