"""Carry one patch from one state of its file to another: exact where it applies, else merged."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from mindspeed_overlay.apply import Applied, Landing, apply_patch, check_symbols
from mindspeed_overlay.errors import ApplyError
from mindspeed_overlay.patch import MODULE_SYMBOL, Patch, make_patch
from mindspeed_overlay.patch_model import split_lines
from mindspeed_overlay.port.document import Document
from mindspeed_overlay.port.marks import exchange
from mindspeed_overlay.port.merge import Elsewhere, Merged, Vanished, merge_file
from mindspeed_overlay.port.model import Move, Outcome, Piece, worst
from mindspeed_overlay.port.place import Region
from mindspeed_overlay.port.rename import rename_words
from mindspeed_overlay.port.slots import Statements
from mindspeed_overlay.syntax import parse_module


@dataclass(frozen=True)
class Carried:
    """What became of one patch in one step.

    Attributes:
        pieces: what became of each edit.
        after: the new file with the edits that could be carried.
        moves: edits for other files.
        marked: `after` with conflict markers, where there are conflicts.
    """

    pieces: tuple[Piece, ...]
    after: bytes
    moves: tuple[Move, ...] = ()
    marked: bytes = b""

    @property
    def outcome(self) -> Outcome:
        """The worst of its pieces; absorbed only where all are."""
        outcomes = [piece.outcome for piece in self.pieces]
        rest = [outcome for outcome in outcomes if outcome not in ("absorbed", "dropped")]
        return worst(rest) if rest else worst(outcomes)


def carry_patch(
    patch: Patch,
    *,
    base: bytes,
    edited: bytes,
    new: bytes,
    elsewhere: Elsewhere = lambda _document, _symbol: None,
    vanished: Vanished = lambda _old, _symbol, _new: False,
    labels: tuple[str, str] = ("upstream", "overlay"),
) -> Carried:
    """Carry a patch from `base`, which it turns into `edited`, to `new`."""
    exact = apply_exactly(patch, new)
    if exact is not None and not _meets_renames(patch, base, new):
        pieces = tuple(
            Piece(
                hunk=number,
                symbol=hunk.symbol,
                line=hunk.old_start,
                outcome="offset" if offset else "exact",
                note=f"{offset:+d} lines" if offset else "",
            )
            for number, (hunk, offset) in enumerate(zip(patch.hunks, exact.offsets, strict=True), 1)
        )
        return Carried(pieces, exact.data)
    merged = _merge(patch, (base, edited, new), (elsewhere, vanished), labels)
    return Carried(merged.pieces, merged.data, merged.moves, merged.marked)


def _meets_renames(patch: Patch, base: bytes, new: bytes) -> bool:
    """Whether a patch adds a name to a symbol in which upstream replaced that name."""
    if base == new or not patch.target.endswith(".py"):
        return False
    old_document, new_document = Document(base), Document(new)
    for hunk in patch.hunks:
        spans = old_document.span_of(hunk.symbol), new_document.span_of(hunk.symbol)
        if hunk.symbol == MODULE_SYMBOL or spans[0] is None or spans[1] is None:
            continue
        ours, theirs = (
            document.lines[slice(*span)]
            for document, span in ((old_document, spans[0]), (new_document, spans[1]))
        )
        if ours == theirs:
            continue
        statements = Statements(Region(old_document, new_document, spans[0], spans[1]))
        added = b"".join(line for line in hunk.lines if line[:1] == b"+")
        if rename_words(added, statements.renames) != added:
            return True
    return False


def apply_exactly(patch: Patch, data: bytes) -> Applied | None:
    """The patch applied by the strict rules, every hunk in its own symbol; None if it does not."""
    document = Document(data, patch.target.endswith(".py"))

    def span_of(symbol: str) -> tuple[int, int] | None:
        span = document.span_of(symbol)
        return (span[0] + 1, span[1]) if span else None

    try:
        applied = apply_patch(data, patch, span_of=span_of)
    except ApplyError:
        return None
    landing = Landing("", patch, data, applied)
    return None if check_symbols(landing, symbol_at=document.symbol_at) else applied


def _merge(
    patch: Patch,
    states: tuple[bytes, bytes, bytes],
    asked: tuple[Elsewhere, Vanished],
    labels: tuple[str, str],
) -> Merged:
    base, edited, new = states
    python = patch.target.endswith(".py")
    merged = merge_file(
        base,
        edited,
        new,
        python=python,
        hunks=patch.hunks,
        elsewhere=asked[0],
        vanished=asked[1],
        labels=labels,
    )
    if not python or not merged.is_clean:
        return merged
    # A merge that no longer parses is no merge.
    if parse_module(merged.data).has_error and not parse_module(new).has_error:
        by_hand = [p for p in merged.pieces if p.outcome not in ("absorbed",)]
        pieces = tuple(
            Piece(
                hunk=p.hunk,
                symbol=p.symbol,
                line=p.line,
                outcome="conflict" if p in by_hand else p.outcome,
                note="the merged file would not parse" if p in by_hand else p.note,
                base=base if p in by_hand else b"",
                ours=new if p in by_hand else b"",
                theirs=edited if p in by_hand else b"",
            )
            for p in merged.pieces
        )
        return Merged(new, pieces, (), merged.data)
    return merged


def remake_patch(
    patch: Patch, *, before: bytes, after: bytes, target: str, tag: str, blob: str, today: str
) -> Patch | None:
    """The canonical patch from `before` to `after` with the header of `patch`; None if equal."""
    if before == after:
        return None
    document = Document(before, target.endswith(".py"))
    symbol_of: Callable[[int], str] = (
        document.symbol_at if document.python else lambda _line: MODULE_SYMBOL
    )
    made = make_patch(
        before,
        after,
        target=target,
        header=renew_header(patch.header, {tag: blob}, today),
        symbol_of=symbol_of,
        reason=patch.reason,
    )
    return made


def renew_header(
    header: Mapping[str, tuple[str, ...]], blobs: Mapping[str, str], today: str
) -> dict[str, tuple[str, ...]]:
    """The header of a patch made anew: these base blobs, this date."""
    fields = {key: values for key, values in header.items() if key != "Base-Blob"}
    fields["Base-Blob"] = tuple(f"{tag} {blob}" for tag, blob in blobs.items())
    if today:
        fields["Last-Update"] = (today,)
    return fields


def apply_moves(data: bytes, moves: Iterable[Move]) -> bytes:
    """Another file with the edits that moved to it."""
    return exchange(data, [move.swap for move in moves])


def same_meaning(left: bytes, right: bytes, *, python: bool = True) -> bool:
    """Whether two texts are the same but for layout and comments."""
    if left == right:
        return True
    if not python:
        return False
    ours, theirs = Document(left), Document(right)
    shapes = [[(u.key, len(u.scope)) for u in document.units] for document in (ours, theirs)]
    return shapes[0] == shapes[1] and bool(split_lines(left)) == bool(split_lines(right))
