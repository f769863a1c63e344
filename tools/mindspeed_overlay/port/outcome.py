"""From a thread at its end to what is reported of its patch."""

from dataclasses import replace

from mindspeed_overlay.patch import Hunk
from mindspeed_overlay.port.model import Outcome, Piece
from mindspeed_overlay.port.threads import PatchResult, Thread


def describe_thread(thread: Thread) -> PatchResult:
    """What became of a thread, at the end."""
    told = tuple(replace(piece, since=piece.since or tag) for tag, piece in thread.told)
    stuck = thread.stuck
    if stuck is None:
        return PatchResult(
            overlay=thread.overlay,
            name=thread.name,
            target=thread.target,
            outcome=thread.outcome,
            pieces=told,
            patch=None if thread.ended else thread.patch,
            base_tag=thread.at,
            base=thread.base,
            edited=thread.edited,
            new=thread.base,
            after=thread.edited,
        )
    pieces = stuck.carried.pieces if stuck.carried else ()
    failed = tuple(replace(p, since=stuck.since) if p.outcome == "conflict" else p for p in pieces)
    return PatchResult(
        overlay=thread.overlay,
        name=thread.name,
        target=stuck.target or thread.target,
        outcome=stuck.outcome,
        pieces=(*told, *failed),
        notes=(stuck.why,) if stuck.why else (),
        base_tag=thread.at,
        base=thread.base,
        edited=thread.edited,
        new=stuck.new,
        after=stuck.carried.marked if stuck.carried else b"",
        partial=stuck.carried.after if stuck.carried else b"",
    )


def drop_hunk(number: int, hunk: Hunk, outcome: Outcome, note: str) -> Piece:
    """What is told of a hunk without an object."""
    return Piece(hunk=number, symbol=hunk.symbol, line=hunk.old_start, outcome=outcome, note=note)


def with_note(piece: Piece, note: str, outcome: Outcome) -> Piece:
    """A piece of a file that is another one now."""
    joined = "; ".join(filter(None, (note, piece.note)))
    if piece.outcome in ("conflict", "absorbed"):
        return replace(piece, note=joined)
    return replace(piece, note=joined, outcome=outcome)
