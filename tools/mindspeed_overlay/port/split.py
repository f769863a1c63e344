"""Carry an edit to the part of a function that upstream split off."""

from mindspeed_overlay.patch_diff import Edit
from mindspeed_overlay.port.document import Document
from mindspeed_overlay.port.model import Placed
from mindspeed_overlay.port.place import Region
from mindspeed_overlay.port.slots import Statements
from mindspeed_overlay.port.statements import place_statements


def place_split(
    documents: tuple[Document, Document, Document], edit: Edit, symbol: str
) -> Placed | None:
    """Look for the statements around an edit in definitions that upstream added."""
    old, edited, new = documents
    kept = {s.qualname for s in old.module.symbols}
    added = {s.qualname for s in new.module.symbols} - kept
    fits: list[tuple[str, Placed]] = []
    span = old.span_of(symbol)
    assert span is not None
    for candidate in sorted(added):
        new_span = new.span_of(candidate)
        assert new_span is not None
        statements = Statements(Region(old, new, span, new_span))
        neighbours = [statements.find(k) for k in _neighbours(statements, edit)]
        if not any(neighbours) or not _is_part(statements):
            continue
        placed = place_statements(statements, edited, edit)
        if isinstance(placed, Placed) and placed.how != "absorbed":
            fits.append((candidate, placed))
    if len(fits) != 1:
        return None
    candidate, placed = fits[0]
    note = f"upstream moved this part of {symbol} to {candidate}"
    return Placed("moved", placed.swaps, "; ".join(filter(None, (note, placed.note))))


def _is_part(statements: Statements) -> bool:
    """Whether most of a new definition's statements come from the old one."""
    keys = {unit.key for unit in statements.old}
    body = [unit for unit in statements.new if not unit.is_definition]
    return 2 * sum(unit.key in keys for unit in body) > len(body)


def _neighbours(statements: Statements, edit: Edit) -> list[int]:
    """The old statements that an edit touches, or those on both sides of an addition."""
    document = statements.region.old
    first = document.units_in(*statements.region.old_span).start
    touched = [k - first for k in document.units_touching(edit[0], edit[1])]
    if edit[0] < edit[1] and touched:
        return [k for k in touched if 0 <= k < len(statements.old)]
    at = next((k for k, u in enumerate(statements.old) if u.first >= edit[0]), len(statements.old))
    return [k for k in (at - 1, at) if 0 < k < len(statements.old)]
