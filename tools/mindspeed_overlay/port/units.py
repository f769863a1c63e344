"""A Python file as a flat list of units: simple statements, and the headers of compound ones.

A unit owns whole lines. Its key is its tokens without comments, line breaks and trailing commas, so
units with equal keys mean the same in whatever layout and at whatever depth they stand.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

import tree_sitter_python
from tree_sitter import Language, Node, Parser

_PARSER = Parser(Language(tree_sitter_python.language()))
_CLAUSES = frozenset(
    [
        "elif_clause",
        "else_clause",
        "except_clause",
        "except_group_clause",
        "finally_clause",
        "case_clause",
        "function_definition",
        "class_definition",
    ]
)
_CLOSING = frozenset((b")", b"]", b"}"))
_EXITS = frozenset(
    ("return_statement", "raise_statement", "continue_statement", "break_statement", "yield")
)
_IMPORTS = frozenset(("import_statement", "import_from_statement", "future_import_statement"))


@dataclass(frozen=True, eq=False)
class Unit:
    """One statement or header.

    Attributes:
        first: index of its first line, comments directly above it not counted.
        end: index after its last line.
        indent: the white space before it.
        kind: the type of its syntax node.
        nodes: the nodes it is made of; of a compound statement those of the header.
        scope: kinds of the statements around it, outermost first.
    """

    first: int
    end: int
    indent: bytes
    kind: str
    nodes: tuple[Node, ...] = field(repr=False)
    scope: tuple[str, ...] = ()

    @cached_property
    def tokens(self) -> tuple[bytes, ...]:
        """Its tokens in order; a string is one token."""
        found: list[bytes] = []
        for leaf in (leaf for node in self.nodes for leaf in list_leaves(node)):
            if leaf in _CLOSING and found and found[-1] == b",":
                found.pop()
            found.append(leaf)
        return tuple(found)

    @cached_property
    def key(self) -> bytes:
        """Equal for units that mean the same."""
        return b" ".join(self.tokens)

    @cached_property
    def plain(self) -> tuple[bytes, ...]:
        """Its tokens without `cast(Type, ...)`, which does nothing."""
        if b"cast" not in self.tokens:
            return self.tokens
        return tuple(leaf for node in self.nodes for leaf in list_leaves(node, casts=False))

    @property
    def is_import(self) -> bool:
        """Whether it is an import statement."""
        return self.kind in _IMPORTS

    @property
    def is_definition(self) -> bool:
        """Whether it is the header of a function or class, or a decorator."""
        return self.kind in ("function_definition", "class_definition", "decorator")

    @cached_property
    def exits(self) -> bool:
        """Whether control may leave the block here."""
        return any(_holds(node, _EXITS) for node in self.nodes)


def uncast(node: Node) -> Node | None:
    """The value of `cast(Type, value)`; None for anything else."""
    function, arguments = (node.child_by_field_name(k) for k in ("function", "arguments"))
    if node.type != "call" or function is None or arguments is None:
        return None
    if function.text not in (b"cast", b"typing.cast") or len(arguments.named_children) != 2:
        return None
    return arguments.named_children[1]


def list_leaves(node: Node, *, casts: bool = True) -> Iterator[bytes]:
    """The tokens of a node, without comments."""
    if node.type in ("comment", "line_continuation"):
        return
    if not casts and (inner := uncast(node)) is not None:
        node = inner
    if node.type == "string" or not node.children:
        if node.text:
            yield node.text
        return
    for child in node.children:
        yield from list_leaves(child, casts=casts)


def node_key(node: Node) -> bytes:
    """The tokens of a node as one value, as in `Unit.key`."""
    return Unit(0, 0, b"", node.type, (node,)).key


def parse_units(data: bytes) -> tuple[list[Unit], bool]:
    """The units of a file in order, and whether the parser met a fault."""
    root = _PARSER.parse(data).root_node
    walk = _Walk(data)
    for child in root.children:
        walk.visit(child, ())
    return walk.units, root.has_error


class _Walk:
    def __init__(self, data: bytes) -> None:
        self.units: list[Unit] = []
        self._data = data

    def visit(self, node: Node, scope: tuple[str, ...]) -> None:
        if node.type in ("comment", ";", "newline"):
            return
        if node.type == "block":
            for child in node.children:
                self.visit(child, scope)
            return
        inner = [c for c in node.children if c.type == "block" or c.type in _CLAUSES]
        if not inner:
            self._add(node.type, (node,), scope)
            return
        head = tuple(c for c in node.children if c not in inner and c.type != "comment")
        if node.type == "decorated_definition":
            for decorator in head:
                self._add("decorator", (decorator,), scope)
            self.visit(inner[-1], scope)
            return
        self._add(node.type, head, scope)
        for child in inner:
            self.visit(child, (*scope, node.type))

    def _add(self, kind: str, nodes: tuple[Node, ...], scope: tuple[str, ...]) -> None:
        if not nodes:
            return
        row, column = nodes[-1].end_point
        first, end = nodes[0].start_point[0], row + (column > 0)
        start = nodes[0].start_byte - nodes[0].start_point[1]
        line = self._data[start : nodes[0].start_byte]
        indent = line[: len(line) - len(line.lstrip())]
        if self.units and self.units[-1].end > first:
            # Two on one line (`if x: return`, `a; b`) are one.
            last = self.units.pop()
            self.units.append(
                Unit(
                    last.first,
                    max(end, last.end),
                    last.indent,
                    last.kind,
                    (*last.nodes, *nodes),
                    last.scope,
                )
            )
            return
        self.units.append(Unit(first, max(end, first + 1), indent, kind, nodes, scope))


def _holds(node: Node, kinds: frozenset[str]) -> bool:
    if node.type in kinds:
        return True
    return any(_holds(child, kinds) for child in node.children if child.type != "lambda")


def list_imports(units: Iterable[Unit]) -> set[tuple[bytes, bytes, bytes]]:
    """What units import at the top of a file: module, name (empty for the module), alias."""
    found: set[tuple[bytes, bytes, bytes]] = set()
    for unit in units:
        if not unit.is_import or unit.scope:
            continue
        for node in unit.nodes:
            source = node.child_by_field_name("module_name")
            module = node_key(source) if source is not None else b""
            for name in node.children_by_field_name("name"):
                inner, alias = name.child_by_field_name("name"), name.child_by_field_name("alias")
                found.add(
                    (module, node_key(inner or name), node_key(alias) if alias is not None else b"")
                )
    return found
