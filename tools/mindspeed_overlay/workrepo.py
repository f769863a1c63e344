"""The patched tree as a git repository: the release, then one commit per overlay.

History is written by `git fast-import`, so no user configuration, hook, identity or line-end
setting takes part; files are written by us, byte for byte.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from mindspeed_overlay.build import patch_files
from mindspeed_overlay.errors import PackagingError, Problem
from mindspeed_overlay.plan import Plan
from mindspeed_overlay.provenance import trace_lines
from mindspeed_overlay.source.transport import run_git
from mindspeed_overlay.staging import clean_leftovers, open_stage, write_files
from mindspeed_overlay.worktree import Worktree, write_note

_IDENTITY = b"mindspeed-overlay <mindspeed-overlay@localhost>"
_DATE = b"0 +0000"  # the same plan gives the same commits
_SETTINGS = {
    "core.autocrlf": "false",
    "core.eol": "lf",
    "core.safecrlf": "false",
    "core.attributesFile": os.devnull,
    "apply.whitespace": "nowarn",
    "commit.gpgSign": "false",
}


def write_repository(
    plan: Plan,
    pristine: Mapping[str, bytes],
    folder: Path,
    *,
    links: Mapping[str, Path] | None = None,
    edits: str = "",
    overlays_folder: str = "",
) -> None:
    """Make `folder` a repository of the patched tree; it appears whole or not at all.

    Args:
        plan: the overlays, in the order of the commits.
        pristine: the release's files.
        folder: absent or empty.
        links: paths of the tree that become symbolic links to files of the overlay set.
        edits: the overlay that is edited in the tree, "" for none; noted for `refresh`.
        overlays_folder: the overlay set, noted likewise.

    Raises:
        PackagingError: E704, the folder has something in it.
        ApplyError: the plan does not fit.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        message = f"{folder} is not empty"
        hint = "name a folder that does not exist; delete this one first if it is an old tree"
        raise PackagingError(Problem(code="E704", message=message, hint=hint))
    states = list(_states(plan, pristine))
    folder.parent.mkdir(parents=True, exist_ok=True)
    clean_leftovers(folder)
    with open_stage(folder) as stage:
        tree = stage / "tree"
        tree.mkdir()
        _import_history(tree, states)
        write_files(tree, states[-1][1])
        for path, target in (links or {}).items():
            (tree / path).unlink()
            (tree / path).symlink_to(target)
        run_git(tree, ["read-tree", "HEAD"])
        run_git(tree, ["update-index", "-q", "--refresh"])
        if links:
            # To git a linked file is unchanged: its content is the overlay's.
            run_git(tree, ["update-index", "--skip-worktree", "--", *links])
        write_note(tree, _describe(plan, pristine, tree, edits, overlays_folder))
        tree.replace(folder)  # over an empty folder too


def _describe(
    plan: Plan, pristine: Mapping[str, bytes], tree: Path, edits: str, overlays_folder: str
) -> Worktree:
    commits = run_git(tree, ["rev-list", "--max-count=2", "HEAD"]).decode().split()
    return Worktree(
        release=plan.release.tag,
        tree=plan.tree,
        head=commits[0],
        base=commits[-1],
        lines=trace_lines(patch_files(plan, pristine).landings),
        own={path: owner for owner, path, _ in plan.files},
        edits=edits,
        overlays_folder=overlays_folder,
    )


def _states(plan: Plan, pristine: Mapping[str, bytes]) -> Iterator[tuple[str, Mapping[str, bytes]]]:
    """(commit message, tree) for the release and after each overlay."""
    release = plan.release
    yield f"{release.tag}\n\nUpstream-Commit: {release.commit or 'unknown'}\n", pristine
    current = pristine
    for overlay in plan.overlays:
        current = patch_files(plan.restricted_to(overlay.id), current).files
        digest = plan.overlay_digest(overlay.id)
        yield (
            f"{overlay.id}: {overlay.summary}\n\nOverlay: {overlay.id}\nOverlay-Digest: {digest}\n",
            current,
        )


def _import_history(folder: Path, states: list[tuple[str, Mapping[str, bytes]]]) -> None:
    run_git(folder, ["init", "--initial-branch=main", "--template=", "--object-format=sha1"])
    for key, value in _SETTINGS.items():
        run_git(folder, ["config", key, value])
    stream = folder / ".git" / "stream"
    stream.write_bytes(b"".join(_stream(states)))
    with stream.open("rb") as commands:
        run_git(folder, ["fast-import", "--quiet", "--done", "--date-format=raw"], stdin=commands)
    stream.unlink()


def _stream(states: list[tuple[str, Mapping[str, bytes]]]) -> Iterator[bytes]:
    before: Mapping[str, bytes] = {}
    for message, tree in states:
        text = message.encode()
        yield b"commit refs/heads/main\n"
        yield b"committer %s %s\ndata %d\n%s\n" % (_IDENTITY, _DATE, len(text), text)
        for path in sorted(tree):
            if before.get(path) != tree[path]:
                name = path.encode()
                yield b"M 100644 inline %s\ndata %d\n%s\n" % (name, len(tree[path]), tree[path])
        before = tree
    yield b"done\n"
