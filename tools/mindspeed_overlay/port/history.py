"""Which upstream commits explain an outcome, from a git repository that has the history."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from mindspeed_overlay.patch import Hunk, parse_patch
from mindspeed_overlay.port.engine import Ported
from mindspeed_overlay.port.model import Commit, Piece
from mindspeed_overlay.port.threads import OverlayResult, PatchResult
from mindspeed_overlay.source.transport import run_git

_FORMAT = "--format=%H%x00%as%x00%an%x00%s"
_SHOWN = 3


def explain_conflicts(ported: Ported, repository: Path) -> Ported:
    """The same outcome, with the upstream commits of each conflict and each absorbed edit."""
    commits = {tree.tag: tree.release.commit or tree.tag for tree in ported.job.trees}
    last = ported.job.new
    overlays = []
    for overlay in ported.overlays:
        patches = [
            _explain_settled(
                repository,
                _explain_patch(repository, patch, commits, last.release.commit or last.tag),
                _read_hunks(ported, overlay, patch),
                [*commits.items()],
            )
            for patch in overlay.patches
        ]
        overlays.append(_with_patches(overlay, patches))
    return replace(ported, overlays=tuple(overlays))


def _read_hunks(ported: Ported, overlay: OverlayResult, patch: PatchResult) -> tuple[Hunk, ...]:
    """The hunks of the form that a patch began as."""
    forms = ported.job.overlays.get(overlay.overlay).patch_sets.get(overlay.since, {})
    data = forms.get(patch.name)
    return parse_patch(data, name=patch.name).hunks if data is not None else ()


def _explain_settled(
    repository: Path, patch: PatchResult, hunks: Sequence[Hunk], steps: Sequence[tuple[str, str]]
) -> PatchResult:
    """Say for edits that are absorbed or dropped which commit of that step made them so."""
    tags = [tag for tag, _ in steps]
    pieces = []
    for piece in patch.pieces:
        at = tags.index(piece.since) if piece.since in tags else 0
        if piece.outcome in ("absorbed", "dropped") and at:
            since, until = steps[at - 1][1], steps[at][1]
            own = [h for h in hunks if h.symbol == piece.symbol] or hunks
            lines = [*_settling_lines(piece, own)]
            found = _find_settling(repository, patch.target, lines, f"{since}..{until}")
            piece = replace(piece, commits=tuple(found))
        pieces.append(piece)
    return replace(patch, pieces=tuple(pieces))


def _settling_lines(piece: Piece, hunks: Sequence[Hunk]) -> Iterator[str]:
    """What came or went with the commit, most telling first."""
    lines = [line for hunk in hunks for line in hunk.lines]
    added = [text for line in lines if line[:1] == b"+" and len(text := line[1:].strip()) > 8]
    removed = [text for line in lines if line[:1] == b"-" and len(text := line[1:].strip()) > 8]
    outermost = piece.symbol.partition(".")[0]
    if piece.outcome == "dropped" and outermost.isidentifier():
        yield from (f"class {outermost}", f"def {outermost}")
    first, second = (removed, added) if piece.outcome == "dropped" else (added, removed)
    for text in (*sorted(first, key=len, reverse=True), *sorted(second, key=len, reverse=True)):
        yield text.decode(errors="replace")


def _find_settling(repository: Path, path: str, lines: Sequence[str], span: str) -> list[Commit]:
    if found := _log(repository, ["-M", "--diff-filter=DR", span, "--", path]):
        return found[:1]
    for line in lines:
        if found := _log(repository, ["--no-merges", "-S", line, span, "--", path]):
            return found[:1]
    return []


def _with_patches(overlay: OverlayResult, patches: list[PatchResult]) -> OverlayResult:
    return replace(overlay, patches=tuple(patches))


def _explain_patch(
    repository: Path, patch: PatchResult, commits: dict[str, str], last: str
) -> PatchResult:
    since = commits.get(patch.base_tag)
    if since is None or since == last:
        return patch
    if patch.outcome == "gone":
        found = find_removal(repository, patch.target, since, last)
        notes = (*patch.notes, *(f"upstream {commit}" for commit in found))
        return replace(patch, notes=notes)
    pieces = tuple(
        replace(piece, commits=tuple(find_commits(repository, patch, piece, since, last)))
        if piece.outcome == "conflict"
        else piece
        for piece in patch.pieces
    )
    return replace(patch, pieces=pieces)


def find_commits(
    repository: Path, patch: PatchResult, piece: Piece, since: str, until: str
) -> list[Commit]:
    """The commits that changed the lines of a conflict, the likeliest first.

    First those that took a line away that the edit needs, or brought one that stands in its place
    (pickaxe), the most telling lines first; else those that changed the symbol (`git log -L`); else
    those that changed the file.
    """
    for line in _telling_lines(piece):
        arguments = ["-S", line.decode(errors="replace"), f"{since}..{until}", "--", patch.target]
        if found := _log(repository, ["--no-merges", *arguments]):
            return found[:_SHOWN]
    name = piece.symbol.rpartition(".")[2]
    if re.fullmatch(r"\w+", name):
        traced = f"-L:{name}:{patch.target}"
        if found := _log(repository, ["-s", traced, f"{since}..{until}"]):
            return found[:_SHOWN]
    return _log(repository, ["--no-merges", f"{since}..{until}", "--", patch.target])[:_SHOWN]


def find_removal(repository: Path, path: str, since: str, until: str) -> list[Commit]:
    """The commit that removed or moved a file."""
    arguments = ["-M", "--diff-filter=DR", f"{since}..{until}", "--", path]
    return _log(repository, arguments)[:1]


def _telling_lines(piece: Piece) -> Iterator[bytes]:
    """Lines that only one side has, longest first: before against upstream."""
    before = [line.strip() for line in piece.base.splitlines()]
    after = [line.strip() for line in piece.ours.splitlines()]
    gone = [line for line in before if line not in after and len(line) > 8]
    new = [line for line in after if line not in before and len(line) > 8]
    yield from sorted(gone, key=len, reverse=True)[:3]
    yield from sorted(new, key=len, reverse=True)[:3]


def _log(repository: Path, arguments: list[str]) -> list[Commit]:
    import git

    try:
        output = run_git(repository, ["log", _FORMAT, *arguments])
    except git.GitCommandError:
        return []
    found = []
    for line in output.decode(errors="replace").splitlines():
        parts = line.split("\0")
        if len(parts) == 4:
            found.append(Commit(id=parts[0], date=parts[1], author=parts[2], subject=parts[3]))
    return found
