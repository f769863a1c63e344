"""Lay out the conflicts of one overlay as an ordinary git merge, and read what became of them.

The work repository's HEAD is the new release with what the overlay requires, MERGE_HEAD the old
one with the overlay, their merge base the old one without it. Conflicted files are unmerged in the
index (stages 1 to 3), so `git status`, `git mergetool` and editors know what to do.
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from mindspeed_overlay.port.threads import OverlayResult, PatchResult
from mindspeed_overlay.source.transport import read_objects, run_git
from mindspeed_overlay.staging import write_files
from mindspeed_overlay.tree import git_blob_id
from mindspeed_overlay.workrepo import _SETTINGS as SETTINGS

_IDENTITY = b"mindspeed-overlay <mindspeed-overlay@localhost> 0 +0000"
_MARKS = (b"<<<<<<< ", b">>>>>>> ")


def lay_out(
    folder: Path, overlay: OverlayResult, files: Mapping[str, bytes], *, tag: str
) -> dict[str, bytes]:
    """Write the work repository of one overlay.

    Args:
        folder: replaced if it is there.
        overlay: with at least one patch to decide on.
        files: the new release.
        tag: its tag.

    Returns:
        The files of the overlay as they were laid out.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    new = dict(files)
    old: dict[str, bytes] = {}
    visible = [p for p in overlay.patches if not p.unchecked and p.outcome != "blocked"]
    for patch in visible:
        if patch.outcome != "gone":
            new[patch.target] = patch.new
        old[patch.target] = patch.base
    shared = {path: data for path, data in new.items() if path not in old}
    edited = {p.target: p.edited for p in visible}
    _import_history(folder, new, shared | old, shared | edited, overlay.overlay, tag)
    shown = {p.target: p.edited if p.outcome == "gone" else p.after for p in visible}
    write_files(folder, new | shown)
    run_git(folder, ["read-tree", "HEAD"])
    run_git(folder, ["update-index", "-q", "--refresh"])
    _write_index(folder, visible)
    head = run_git(folder, ["rev-parse", "refs/heads/overlay"]).decode().strip()
    (folder / ".git" / "MERGE_HEAD").write_text(f"{head}\n")
    message = f"{overlay.overlay}: carry to {tag}\n\nOverlay: {overlay.overlay}\n"
    (folder / ".git" / "MERGE_MSG").write_text(message)
    return shown


def read_back(folder: Path, shown: Mapping[str, bytes]) -> tuple[dict[str, bytes], list[str]]:
    """The files as a person left them, and which of them still have conflict markers.

    A file that was deleted means that its patch is dropped: it comes back as it is in HEAD, empty
    where HEAD has none.
    """
    found: dict[str, bytes] = {}
    marked: list[str] = []
    for path in shown:
        place = folder / path
        if not place.is_file():
            found[path] = _read_head(folder, path)
            continue
        data = place.read_bytes()
        if has_markers(data):
            marked.append(path)
        found[path] = data
    return found, marked


def _read_head(folder: Path, path: str) -> bytes:
    import git

    try:
        blob = run_git(folder, ["rev-parse", "--verify", "--quiet", f"refs/port/new:{path}"])
    except git.GitCommandError:
        return b""
    with read_objects(folder) as objects:
        return bytes(objects.get_object_data(blob.decode().strip())[3])


def has_markers(data: bytes) -> bool:
    """Whether conflict markers stand in a text."""
    lines = data.split(b"\n")
    return all(any(line.startswith(mark) for line in lines) for mark in _MARKS)


def _import_history(
    folder: Path,
    new: Mapping[str, bytes],
    base: Mapping[str, bytes],
    edited: Mapping[str, bytes],
    overlay: str,
    tag: str,
) -> None:
    run_git(folder, ["init", "--initial-branch=main", "--template=", "--object-format=sha1"])
    for key, value in {
        **SETTINGS,
        "merge.conflictStyle": "diff3",
        "rerere.enabled": "false",
    }.items():
        run_git(folder, ["config", key, value])
    commits = (
        (b"refs/heads/base", f"{overlay}: without it\n", base, b""),
        (b"refs/heads/overlay", f"{overlay}\n\nOverlay: {overlay}\n", edited, b":1"),
        (b"refs/heads/main", f"{tag}\n", new, b":1"),
        (b"refs/port/new", f"{tag}\n", new, b":1"),
    )
    stream = folder / ".git" / "stream"
    stream.write_bytes(b"".join(_stream(commits)))
    with stream.open("rb") as commands:
        run_git(folder, ["fast-import", "--quiet", "--done", "--date-format=raw"], stdin=commands)
    stream.unlink()


def _stream(commits: Sequence[tuple[bytes, str, Mapping[str, bytes], bytes]]) -> Iterator[bytes]:
    first: Mapping[str, bytes] = {}
    for mark, (reference, message, tree, parent) in enumerate(commits, 1):
        text = message.encode()
        yield b"commit %s\nmark :%d\ncommitter %s\n" % (reference, mark, _IDENTITY)
        yield b"data %d\n%s\n" % (len(text), text)
        yield b"from %s\n" % parent if parent else b""
        for path in sorted(first.keys() - tree.keys()):
            yield b"D %s\n" % path.encode()
        for path in sorted(tree):
            if first.get(path) != tree[path]:
                yield b"M 100644 inline %s\ndata %d\n%s\n" % (
                    path.encode(),
                    len(tree[path]),
                    tree[path],
                )
        first = first or tree
    yield b"done\n"


def _write_index(folder: Path, patches: Sequence[PatchResult]) -> None:
    lines: list[bytes] = []
    for patch in patches:
        if not patch.is_open:
            continue
        path = patch.target.encode()
        lines.append(b"0 %s\t%s\n" % (b"0" * 40, path))
        stages = [(1, patch.base), (2, patch.new), (3, patch.edited)]
        if patch.outcome == "gone":
            stages = [(1, patch.base), (3, patch.edited)]
        for stage, data in stages:
            lines.append(b"100644 %s %d\t%s\n" % (git_blob_id(data).encode(), stage, path))
    feed = folder / ".git" / "index-info"
    feed.write_bytes(b"".join(lines))
    with feed.open("rb") as commands:
        run_git(folder, ["update-index", "--index-info"], stdin=commands)
    feed.unlink()
    merged = [p.target for p in patches if not p.is_open]
    if merged:
        run_git(folder, ["update-index", "--add", "--", *merged])
