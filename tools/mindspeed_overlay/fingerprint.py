"""Fingerprints of functions and classes: equal where only looks differ.

Taken from the syntax tree. Docstrings, comments, `pass`, line breaks, redundant parentheses,
trailing commas, quotes and the splitting of string literals don't count; everything else does,
annotations and defaults too. The name of a definition is not part of its own fingerprint, so one
that was moved or renamed can be recognised.
"""

import ast
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import tree_sitter_python
from tree_sitter import Language, Node, Parser

from mindspeed_overlay.syntax_model import MODULE
from mindspeed_overlay.syntax_nodes import named, text_of

_PARSER = Parser(Language(tree_sitter_python.language()))
_DEFINITIONS = ("function_definition", "class_definition")
_IMPORTS = ("import_statement", "import_from_statement", "future_import_statement")
# The nesting of the nodes says what these say.
_PUNCTUATION = frozenset(("(", ")", "[", "]", "{", "}", ",", ":", ".", ";", "->", "="))
_DROPPED = frozenset(("comment", "pass_statement", "line_continuation"))
_ALIKE = {"expression_list": "tuple", "pattern_list": "tuple_pattern"}
_QUOTE = '"""'
_STRINGS = ("string", "concatenated_string")

Slice = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Hashes of one definition.

    Attributes:
        signature: how it is called: decorators, parameters with defaults and annotations, result;
            of a class its decorators, bases, keywords, and what its constructor takes.
        body: what it does. Of a class everything inside, its methods with their names too.
    """

    signature: str
    body: str


@lru_cache(maxsize=512)
def fingerprint_symbols(data: bytes) -> Mapping[str, Fingerprint]:
    """The fingerprint of every definition of a module, by qualified name as in `syntax_model`.

    Several definitions of one name (a property and its setter, the arms of an if) count together,
    in their order. `<module>` is there too: its body is what the module does besides defining and
    importing.

    Args:
        data: Python source, whole or broken; skipped text counts as it stands.
    """
    walk = _Walk()
    walk.run(_PARSER.parse(data).root_node)
    return walk.collect()


@dataclass
class _Definition:
    qualname: str
    is_class: bool
    is_dataclass: bool
    signature: list[Slice] = field(default_factory=list)
    body: Slice = (0, 0)


@dataclass(frozen=True)
class _Mark:
    """Runs when everything pushed above it has been encoded."""

    what: str
    definition: _Definition
    start: list[int]


_Task = tuple["Node | bytes | _Mark", "_Definition | None"]


class _Walk:
    """Encodes the tree into tokens and notes which tokens belong to which definition.

    A stack of its own: long expressions nest deeper than Python can recurse.
    """

    def __init__(self) -> None:
        self._tokens: list[bytes] = []
        self._definitions: list[_Definition] = []
        self._outside: list[Slice] = []  # tokens of definitions and imports of the module's scope

    def run(self, root: Node) -> None:
        stack: list[_Task] = [(root, None)]
        while stack:
            item, owner = stack.pop()
            if isinstance(item, bytes):
                self._tokens.append(item)
            elif isinstance(item, _Mark):
                self._note(item, owner)
            elif item.type not in _DROPPED:
                stack.extend(reversed(list(self._encode(item, owner))))

    def _note(self, mark: _Mark, owner: _Definition | None) -> None:
        at = len(self._tokens)
        if not mark.start:
            mark.start.append(at)
            return
        covered = (mark.start[0], at)
        if mark.what == "signature":
            mark.definition.signature.append(covered)
        elif mark.what == "body":
            mark.definition.body = covered
        elif owner is None:
            self._outside.append(covered)

    def _encode(self, node: Node, owner: _Definition | None) -> Iterator[_Task]:
        kind = node.type
        if kind in _STRINGS:
            yield from ((part, owner) for part in _read_string(node))
        elif kind == "decorated_definition" or kind in _DEFINITIONS:
            yield from self._enter(node, owner)
        elif kind in _IMPORTS and owner is None:
            yield from _marked("outside", _NOWHERE, _children(node), owner)
        elif kind == "parenthesized_expression":
            yield from ((child, owner) for child in node.named_children)
        elif not node.children:
            yield (node.text or b"", owner)
        elif _is_field(node, owner):
            assert owner is not None
            yield from _marked("signature", owner, _children(node), owner)
        else:
            yield from ((child, owner) for child in _children(node))

    def _enter(self, outer: Node, owner: _Definition | None) -> Iterator[_Task]:
        node = outer.child_by_field_name("definition") or outer
        name = text_of(node.child_by_field_name("name"))
        decorators = [n for n in named(outer) if n.type == "decorator"]
        is_class = node.type == "class_definition"
        definition = _Definition(
            f"{owner.qualname}.{name}" if owner else name,
            is_class,
            is_class and any("dataclass" in text_of(n) for n in decorators),
        )
        self._definitions.append(definition)
        body = node.child_by_field_name("body")
        head = [n for n in node.children if n not in (body, node.child_by_field_name("name"))]
        head = [n for n in head if n.type not in _PUNCTUATION]
        inner: list[Node | bytes] = [] if body is None else [*_children(body)]
        tasks = [
            (name.encode(), None),
            *_marked("signature", definition, [*decorators, *head], None),
            *_marked("body", definition, inner, definition),
        ]
        yield from _marked("outside", definition, tasks, owner)

    def collect(self) -> Mapping[str, Fingerprint]:
        found: dict[str, tuple[list[bytes], list[bytes]]] = {}
        by_name = {d.qualname: d for d in self._definitions}
        for definition in self._definitions:
            signature, body = found.setdefault(definition.qualname, ([], []))
            slices = definition.signature
            constructor = by_name.get(f"{definition.qualname}.__init__")
            if definition.is_class and constructor is not None:
                slices = [*slices, *constructor.signature]
            signature += [b"\1", *self._cut(slices)]
            body += [b"\1", *self._cut([definition.body])]
        found[MODULE] = ([], list(self._cut(self._rest())))
        return {name: Fingerprint(_hash(head), _hash(body)) for name, (head, body) in found.items()}

    def _cut(self, slices: Iterable[Slice]) -> Iterator[bytes]:
        for start, end in slices:
            yield from self._tokens[start:end]

    def _rest(self) -> Iterator[Slice]:
        at = 0
        for start, end in self._outside:
            yield at, start
            at = end
        yield at, len(self._tokens)


_NOWHERE = _Definition("", False, False)


def _marked(
    what: str, definition: _Definition, inside: Iterable[object], owner: _Definition | None
) -> Iterator[_Task]:
    """Tasks for `inside` (nodes, tokens or tasks) between two marks that note what they gave."""
    start: list[int] = []
    yield _Mark(what, definition, start), owner
    for item in inside:
        yield item if isinstance(item, tuple) else (item, owner)
    yield _Mark(what, definition, start), owner


def _children(node: Node) -> Iterator[Node | bytes]:
    """What a node is made of, between brackets that name its kind."""
    keep = {"slice": ":", "interpolation": "=", "subscript": ","}.get(node.type, "")
    if node.type == "subscript" and not _has_lone_comma(node):
        keep = ""
    yield f"({_ALIKE.get(node.type, node.type)}".encode()
    skip = _find_docstring(node)
    for child in node.children:
        if child == skip:
            continue
        if child.type not in _PUNCTUATION:
            yield child
        elif child.type == keep:
            yield keep.encode()
    yield b")"


def _has_lone_comma(node: Node) -> bool:
    # x[i] and x[i,] are different things; x[i, j] and x[i, j,] are the same.
    commas = sum(child.type == "," for child in node.children)
    return commas == 1 and len(named(node)) == 2


def _find_docstring(node: Node) -> Node | None:
    """The docstring among a suite's statements."""
    parent = node.parent
    if node.type != "module" and (parent is None or parent.type not in _DEFINITIONS):
        return None
    statements = named(node)
    first = statements[0] if statements and node.type in ("block", "module") else None
    if first is None or first.type != "expression_statement" or len(named(first)) != 1:
        return None
    return first if named(first)[0].type in _STRINGS else None


def _is_field(node: Node, owner: _Definition | None) -> bool:
    """Whether a node declares a field that a dataclass's constructor takes."""
    if owner is None or not owner.is_dataclass or node.type != "assignment":
        return False
    return node.child_by_field_name("type") is not None


def _read_string(node: Node) -> Iterator[Node | bytes]:
    """A string by its value; of an f-string the literal text and the nodes between it."""
    literal = ""
    for part in named(node) if node.type == "concatenated_string" else [node]:
        prefix = text_of(part.children[0]).rstrip("\"'").lower() if part.children else ""
        if "f" not in prefix and "t" not in prefix:
            literal += ("b" if "b" in prefix else "") + _evaluate(text_of(part))
            continue
        for child in part.children[1:-1]:
            if child.type == "interpolation":
                yield f"(string {literal}".encode()
                literal = ""
                yield child
            else:
                raw = "r" if "r" in prefix else ""
                literal += _evaluate(f"{raw}{_QUOTE}{text_of(child)}{_QUOTE}")
    yield f"(string {literal}".encode()


def _evaluate(source: str) -> str:
    try:
        value = ast.literal_eval(source)
    except (ValueError, SyntaxError):
        return source
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _hash(tokens: Iterable[bytes]) -> str:
    return hashlib.sha256(b"\0".join(tokens)).hexdigest()[:20]
