"""What a port came to, as lines of text and as JSON."""

from collections.abc import Iterator
from typing import Any

from mindspeed_overlay.errors import Problem
from mindspeed_overlay.port.engine import Ported, summarize
from mindspeed_overlay.port.model import Piece
from mindspeed_overlay.port.threads import OverlayResult, PatchResult

FORMAT = 1
_CODES = {"conflict": "E530", "gone": "E531", "blocked": "E532"}
GATE_CODE = "E533"


def render_text(ported: Ported, *, details: bool = False) -> Iterator[str]:
    """The report for a terminal.

    Args:
        ported: the outcome.
        details: also tell what needed nothing.
    """
    for overlay in ported.overlays:
        yield f"{overlay.overlay}: {describe_overlay(overlay, ported.job.new.tag)}"
        for patch in overlay.patches:
            if details or patch.outcome not in ("exact", "offset") or patch.unchecked:
                yield from _render_patch(patch, overlay)
        for problem in overlay.problems:
            yield f"  {problem}"
    for name in ported.not_claimed:
        yield f"{name}: not carried, its `releases` leave {ported.job.new.tag} out"
    counts = summarize(ported)
    total = ", ".join(f"{n} {name}" for name, n in sorted(counts.items(), key=lambda c: -c[1]))
    yield f"{len(ported.overlays)} overlays, {len(ported.patches)} patches: {total or 'none'}"


def describe_overlay(overlay: OverlayResult, tag: str) -> str:
    """What became of an overlay, in a few words."""
    if overlay.kept:
        return f"keeps its own patches/{tag}/ (carried anew it would be: {overlay.outcome})"
    if overlay.is_open:
        count = sum(patch.is_open for patch in overlay.patches) + len(overlay.problems)
        return f"{count} to decide"
    if not overlay.patches:
        return "has no patches, its files serve every release"
    if overlay.still_serves:
        return f"{overlay.outcome}, patches/{overlay.since}/ goes on serving"
    return f"{overlay.outcome}, a new patches/{tag}/"


def _render_patch(patch: PatchResult, overlay: OverlayResult) -> Iterator[str]:
    state = "not checked" if patch.unchecked else patch.outcome
    yield f"  {patch.target}: {state}" + (f": {patch.unchecked}" if patch.unchecked else "")
    for note in patch.notes:
        yield f"    {note}"
    for piece in patch.pieces:
        if piece.outcome in ("exact", "offset"):
            continue
        since = f" since {piece.since}" if piece.since else ""
        note = f": {piece.note}" if piece.note else ""
        yield f"    hunk {piece.hunk} in {piece.symbol}: {piece.outcome}{since}{note}"
        for commit in piece.commits:
            yield f"      upstream {commit}"
    del overlay


def to_json(ported: Ported) -> dict[str, Any]:
    """The report for machines."""
    return {
        "ok": not ported.open,
        "format": FORMAT,
        "to": ported.job.new.tag,
        "steps": [tree.tag for tree in ported.job.trees],
        "counts": summarize(ported),
        "not_claimed": list(ported.not_claimed),
        "overlays": [_overlay_to_json(o, ported.job.new.tag) for o in ported.overlays],
        "problems": [p.to_json() for p in list_problems(ported)],
    }


def _overlay_to_json(overlay: OverlayResult, tag: str) -> dict[str, Any]:
    return {
        "overlay": overlay.overlay,
        "outcome": overlay.outcome,
        "since": overlay.since,
        "kept": overlay.kept,
        "still_serves": overlay.still_serves,
        "says": describe_overlay(overlay, tag),
        "problems": list(overlay.problems),
        "patches": [
            {
                "patch": patch.name,
                "target": patch.target,
                "outcome": "unchecked" if patch.unchecked else patch.outcome,
                "from": patch.base_tag,
                "notes": list(patch.notes) + ([patch.unchecked] if patch.unchecked else []),
                "hunks": [piece.to_json() for piece in patch.pieces],
            }
            for patch in overlay.patches
        ],
    }


def list_problems(ported: Ported) -> list[Problem]:
    """Everything that a person has to decide, each with the next command to type."""
    problems: list[Problem] = []
    for overlay in ported.open:
        for patch in overlay.patches:
            if patch.outcome == "conflict":
                problems += [
                    _to_problem(patch, piece)
                    for piece in patch.pieces
                    if piece.outcome == "conflict"
                ]
            elif patch.is_open:
                problems.append(_to_problem(patch, None))
        problems += [
            Problem(
                code=GATE_CODE, overlay=overlay.overlay, message=text, hint=_hint(overlay.overlay)
            )
            for text in overlay.problems
        ]
    return problems


def _to_problem(patch: PatchResult, piece: Piece | None) -> Problem:
    if piece is None:
        message = f"{patch.target}: " + "; ".join(patch.notes)
        code = _CODES[patch.outcome]
        return Problem(
            code=code,
            overlay=patch.overlay,
            patch=patch.name,
            path=patch.target,
            message=message,
            hint=_hint(patch.overlay),
        )
    is_gate = piece.note.startswith("the merge is wrong")
    where = f"{patch.target}:{piece.line} (in {piece.symbol})"
    commit = f"; upstream {piece.commits[0]}" if piece.commits else ""
    since = f" since {piece.since}" if piece.since and not is_gate else ""
    return Problem(
        code=GATE_CODE if is_gate else "E530",
        overlay=patch.overlay,
        patch=patch.name,
        hunk=piece.hunk,
        path=patch.target,
        line=piece.line,
        symbol=piece.symbol,
        message=f"hunk {piece.hunk} conflicts{since} at {where}: {piece.note}{commit}",
        hint=_hint(patch.overlay),
    )


def _hint(overlay: str) -> str:
    return f"solve it in the work repository and `port --continue`, or `port --skip {overlay}`"
