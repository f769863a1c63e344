"""Whether two groups of statements may stand in either order."""

from collections.abc import Iterable, Sequence

from tree_sitter import Node

from mindspeed_overlay.port.units import Unit
from mindspeed_overlay.syntax_nodes import text_of

_DEFERRED = frozenset(("lambda", "function_definition"))


def is_guard(units: Sequence[Unit]) -> bool:
    """Whether statements are one `if` that returns: another way to do all that follows."""
    head, *body = units
    nested = all(len(unit.indent) > len(head.indent) for unit in body)
    if head.kind != "if_statement" or not nested:
        return False
    return (body[-1] if body else head).exits


def explain_clash(ours: Sequence[Unit], theirs: Sequence[Unit], *, guards: bool = False) -> str:
    """Why the order of two groups of statements matters; empty where it does not.

    Names and attributes that one writes and the other uses matter, and so does leaving the block.
    What a call does behind its arguments can't be seen from here.

    Args:
        ours: statements that the overlay adds.
        theirs: statements that upstream added at the same place.
        guards: ours are a guard (`is_guard`) that goes right before what it guards. It must see
            what that sees, so upstream's statements stay before it, if they only compute values.
    """
    if guards and all(_only_computes(unit) for unit in theirs):
        return ""
    ours, theirs = _executed(ours), _executed(theirs)
    for leaving, other in ((ours, theirs), (theirs, ours)):
        exits = next((unit for unit in leaving if unit.exits), None)
        if exits is not None and not all(unit.is_import or unit.is_definition for unit in other):
            return f"upstream added statements here, and `{_show(exits)}` may leave the block"
    mine, yours = _Names(ours), _Names(theirs)
    shared = (mine.written & (yours.written | yours.read)) | (yours.written & mine.read)
    if shared:
        return f"upstream added statements here that share `{min(shared)}` with it"
    return ""


def bound_names(unit: Unit) -> set[str]:
    """The names that a statement binds or assigns."""
    return {name.partition(".")[0] for name in _Names([unit]).written}


def _only_computes(unit: Unit) -> bool:
    """Whether a statement assigns, imports, or decides; calls for their effect don't."""
    if unit.exits:
        return False
    if unit.kind != "expression_statement":
        return unit.kind not in ("with_statement", "try_statement", "delete_statement")
    inner = unit.nodes[0].named_children
    return bool(inner) and inner[0].type in ("assignment", "augmented_assignment", "string")


def _executed(units: Sequence[Unit]) -> list[Unit]:
    """Statements that run where they stand: what is inside a definition does not."""
    found: list[Unit] = []
    inside: bytes | None = None
    for unit in units:
        if inside is not None and len(unit.indent) > len(inside):
            continue
        inside = unit.indent if unit.kind == "function_definition" else None
        found.append(unit)
    return found


class _Names:
    def __init__(self, units: Iterable[Unit]) -> None:
        self.read: set[str] = set()
        self.written: set[str] = set()
        for unit in units:
            for node in unit.nodes:
                if unit.is_definition:
                    if node.type == "identifier":
                        self.written.add(text_of(node))
                else:
                    self._visit(node)

    def _visit(self, node: Node) -> None:
        if node.type in ("assignment", "augmented_assignment", "named_expression"):
            left = node.child_by_field_name("left") or node.child_by_field_name("name")
            self._write(left)
            if node.type == "augmented_assignment":
                self._read(left)
            self._read(node.child_by_field_name("right") or node.child_by_field_name("value"))
            return
        if node.type in ("import_statement", "import_from_statement"):
            for name in node.children_by_field_name("name"):
                alias = name.child_by_field_name("alias")
                self.written.add(text_of(alias or name))
            return
        if node.type == "as_pattern_target":
            self._write(node)
            return
        if node.type == "delete_statement":
            self._write(node)
        if node.type in ("identifier", "attribute"):
            self._read(node)
            return
        if node.type == "keyword_argument":
            self._read(node.child_by_field_name("value"))
            return
        for child in node.named_children:
            self._visit(child)

    def _read(self, node: Node | None) -> None:
        if node is None or node.type in ("comment", "string"):
            return
        if node.type == "attribute":
            self.read.add(text_of(node))
            self._read(node.child_by_field_name("object"))
        elif node.type == "identifier":
            self.read.add(text_of(node))
        elif node.type == "keyword_argument":
            self._read(node.child_by_field_name("value"))
        else:
            for child in node.named_children:
                self._read(child)

    def _write(self, node: Node | None) -> None:
        if node is None:
            return
        if node.type in ("identifier", "attribute"):
            self.written.add(text_of(node))
        elif node.type == "subscript":
            self._write(node.child_by_field_name("value"))
        else:
            for child in node.named_children:
                self._write(child)


def _show(unit: Unit) -> str:
    text = unit.key.decode(errors="replace")
    return text if len(text) <= 60 else text[:57] + "..."
