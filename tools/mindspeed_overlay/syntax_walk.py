"""One pass over a syntax tree that notes what `syntax_model.Module` holds."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import tree_sitter_python
from tree_sitter import Language, Node, Query, QueryCursor

from mindspeed_overlay.syntax_model import MODULE, Binding, Call, Field, Import, Symbol
from mindspeed_overlay.syntax_nodes import (
    identifiers_in,
    last_line_of,
    line_of,
    named,
    read_arguments,
    read_bases,
    read_keyword_names,
    read_signature,
    text_of,
)

Guard = Literal["", "try", "typing"]

_CATCHES_IMPORT_ERROR = re.compile(
    r"\b(ImportError|ModuleNotFoundError|Exception|BaseException)\b|^except\s*:"
)
_SUPPRESSES = re.compile(r"\bsuppress\([^)]*\b(ImportError|ModuleNotFoundError|Exception)\b")
_TYPE_CHECKING = re.compile(r"(\w+\.)?TYPE_CHECKING")
_CALLEE = re.compile(r"(super\(\)|[^\W\d]\w*)(\.[^\W\d]\w*)*")
_WRITES_GLOBALS = ("globals", "exec", "vars")
_INSTANCE = ("self", "cls")


@dataclass(frozen=True, slots=True)
class _Suite:
    """A range of bytes with a scope and guard of its own; what is in it may be of no interest."""

    start: int
    end: int
    scope: str
    guard: Guard
    skip: bool


def _suite(body: Node | None, scope: str, guard: Guard, *, skip: bool = False) -> _Suite | None:
    return _Suite(body.start_byte, body.end_byte, scope, guard, skip) if body is not None else None


def _document_order(node: Node) -> tuple[int, int]:
    return (node.start_byte, -node.end_byte)


def _enclosing(scope: str) -> Iterable[str]:
    while "." in scope:
        scope = scope.rpartition(".")[0]
        yield scope


class Walk:
    """The pass, over the few kinds of node that matter; no recursion, whatever the nesting."""

    def __init__(self, *, outline: bool) -> None:
        self._outline = outline
        self.bindings: dict[str, dict[str, list[Binding]]] = {MODULE: {}}
        self.imports: list[Import] = []
        self.calls: list[Call] = []
        self.is_dynamic = False
        self._definitions: list[tuple[Node, str]] = []
        self._attributes: dict[str, set[str]] = {}
        self._fields: dict[int, list[Field]] = {}
        self._class_scopes: set[str] = set()
        self._globals: set[tuple[str, str]] = set()

    def run(self, root: Node) -> None:
        """Visit everything below a node, in the order of the source."""
        found = QueryCursor(_QUERY).captures(root).get("node", [])
        # Innermost last. A suite is pushed before what stands ahead of it in its own statement
        # (defaults, bases, conditions), so the last one may not have begun yet.
        suites = [_Suite(root.start_byte, root.end_byte, MODULE, "", False)]
        for node in sorted(found, key=_document_order):
            start = node.start_byte
            while suites[-1].end <= start and len(suites) > 1:
                suites.pop()
            suite = next(s for s in reversed(suites) if s.start <= start)
            if not suite.skip:
                opened = _HANDLERS[node.type](self, node, suite.scope, suite.guard)
                suites += [opened] if opened is not None else []

    def build_symbols(self) -> tuple[Symbol, ...]:
        """The definitions met, in the order of the source, an outer one before its inner ones."""
        found = [self._build_symbol(*definition) for definition in self._definitions]
        return tuple(sorted(found, key=lambda s: (s.first_line, -s.last_line)))

    def _build_symbol(self, node: Node, qualname: str) -> Symbol:
        decorated = node.parent is not None and node.parent.type == "decorated_definition"
        outer = node.parent if decorated and node.parent is not None else node
        is_class = node.type == "class_definition"
        supers, body = node.child_by_field_name("superclasses"), node.child_by_field_name("body")
        decorators = (n for n in named(outer) if n.type == "decorator")
        parameters = node.child_by_field_name("parameters")
        return Symbol(
            qualname=qualname,
            kind="class" if is_class else "function",
            first_line=line_of(outer),
            def_line=line_of(node),
            last_line=last_line_of(node),
            block=outer.parent.id if outer.parent is not None else 0,
            decorators=tuple(text_of(n).removeprefix("@").strip() for n in decorators),
            signature=None if is_class else read_signature(parameters),
            bases=read_bases(supers),
            class_keywords=read_keyword_names(named(supers)),
            fields=tuple(self._fields.get(body.id, ())) if is_class and body is not None else (),
            attributes=frozenset(self._attributes.get(qualname, ()) if is_class else ()),
        )

    def _bind(self, scope: str, name: str, binding: Binding) -> None:
        target = MODULE if (scope, name) in self._globals else scope
        self.bindings.setdefault(target, {}).setdefault(name, []).append(binding)

    def bind_globals(self, names: Iterable[str]) -> None:
        """Bind names in the module that functions declare global and may assign."""
        for name in names:
            self._bind(MODULE, name, Binding("value", 0))

    def _bind_target(self, scope: str, target: Node | None) -> None:
        for node in identifiers_in(target):
            self._bind(scope, text_of(node), Binding("value", line_of(node)))

    def _bind_hidden(self, scope: str, names: Iterable[str], node: Node) -> None:
        """Names of lambdas and comprehensions: not a module's or class's own, unsure elsewhere."""
        is_open = scope == MODULE or scope in self._class_scopes
        for name in names:
            self._bind(
                f"{scope}.<hidden>" if is_open else scope, name, Binding("value", line_of(node))
            )

    def _note_attribute(self, scope: str, name: str) -> None:
        for parent in _enclosing(scope):
            self._attributes.setdefault(parent, set()).add(name)

    def _note_attributes(self, scope: str, target: Node | None) -> None:
        if target is not None and target.type == "attribute":
            if text_of(target.child_by_field_name("object")) in _INSTANCE:
                self._note_attribute(scope, text_of(target.child_by_field_name("attribute")))
        elif target is not None and target.type.endswith(("_list", "_pattern")):
            for child in target.named_children:
                self._note_attributes(scope, child)

    # Handlers: record, and return the suite that they open, if it has a scope or guard of its own.

    def definition(self, node: Node, scope: str, guard: Guard) -> _Suite | None:
        name = text_of(node.child_by_field_name("name"))
        qualname = name if scope == MODULE else f"{scope}.{name}"
        is_class = node.type == "class_definition"
        self._bind(scope, name, Binding("definition", line_of(node)))
        self._definitions.append((node, qualname))
        self.bindings.setdefault(qualname, {})
        if is_class:
            self._class_scopes.add(qualname)
        for parameter in read_signature(node.child_by_field_name("parameters")).parameters:
            self._bind(qualname, parameter.name, Binding("value", line_of(node)))
        self._bind_target(qualname, node.child_by_field_name("type_parameters"))
        # What a function imports runs later, outside the try around its definition.
        return _suite(
            node.child_by_field_name("body"),
            qualname,
            guard if is_class else "",
            skip=self._outline and not is_class,
        )

    def lambda_(self, node: Node, scope: str, guard: Guard) -> None:
        signature = read_signature(node.child_by_field_name("parameters"))
        self._bind_hidden(scope, (p.name for p in signature.parameters), node)

    def comprehension(self, node: Node, scope: str, guard: Guard) -> None:
        left = node.child_by_field_name("left")
        self._bind_hidden(scope, map(text_of, identifiers_in(left)), node)

    def try_(self, node: Node, scope: str, guard: Guard) -> _Suite | None:
        handlers = (n for n in node.named_children if n.type == "except_clause")
        heads = (text_of(n).partition("\n")[0] for n in handlers)
        caught = any(_CATCHES_IMPORT_ERROR.search(head) for head in heads)
        return _suite(node.child_by_field_name("body"), scope, "try") if caught else None

    def if_(self, node: Node, scope: str, guard: Guard) -> _Suite | None:
        typing = _TYPE_CHECKING.fullmatch(text_of(node.child_by_field_name("condition")))
        return _suite(node.child_by_field_name("consequence"), scope, "typing") if typing else None

    def with_(self, node: Node, scope: str, guard: Guard) -> _Suite | None:
        clauses = (text_of(n) for n in node.named_children if n.type == "with_clause")
        suppressed = any(_SUPPRESSES.search(clause) for clause in clauses)
        return _suite(node.child_by_field_name("body"), scope, "try") if suppressed else None

    def import_(self, node: Node, scope: str, guard: Guard) -> None:
        for child in node.children_by_field_name("name"):
            path = text_of(child.child_by_field_name("name") or child)
            bound = text_of(child.child_by_field_name("alias")) or path.partition(".")[0]
            self._add_import(child, scope, guard, path, "", bound)

    def import_from(self, node: Node, scope: str, guard: Guard) -> None:
        path = text_of(node.child_by_field_name("module_name")).replace(" ", "")
        if any(n.type == "wildcard_import" for n in node.named_children):
            self._add_import(node, scope, guard, path, "*", "")
        for child in node.children_by_field_name("name"):
            name = text_of(child.child_by_field_name("name") or child)
            bound = text_of(child.child_by_field_name("alias")) or name
            self._add_import(child, scope, guard, path, name, bound)

    def _add_import(
        self, node: Node, scope: str, guard: Guard, path: str, name: str, bound: str
    ) -> None:
        module = path.lstrip(".")
        found = Import(
            module=module,
            level=len(path) - len(module),
            name=name,
            bound=bound,
            line=line_of(node),
            symbol=scope,
            guard=guard,
        )
        self.imports.append(found)
        if bound:
            self._bind(scope, bound, Binding("import", found.line, found))

    def global_(self, node: Node, scope: str, guard: Guard) -> None:
        self._globals.update((scope, text_of(child)) for child in node.named_children)

    def assignment(self, node: Node, scope: str, guard: Guard) -> None:
        left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
        annotation, statement = node.child_by_field_name("type"), node.parent
        # A bare annotation binds nothing at run time, except for a dataclass, which reads it.
        if left is not None and right is not None and left.type == "identifier":
            dotted = node.type == "assignment" and right.type in ("identifier", "attribute")
            alias = text_of(right) if dotted and _CALLEE.fullmatch(text_of(right)) else ""
            self._bind(scope, text_of(left), Binding("value", line_of(node), alias=alias))
        elif right is not None or scope in self._class_scopes:
            self._bind_target(scope, left)
        self._note_attributes(scope, left)
        suite = statement.parent if statement is not None else None
        if annotation is not None and suite is not None and left is not None:
            default = None if right is None else text_of(right)
            field = Field(text_of(left), text_of(annotation), default, line_of(node))
            self._fields.setdefault(suite.id, []).append(field)

    def for_(self, node: Node, scope: str, guard: Guard) -> None:
        self._bind_target(scope, node.child_by_field_name("left"))
        self._note_attributes(scope, node.child_by_field_name("left"))

    def binder(self, node: Node, scope: str, guard: Guard) -> None:
        """Walrus, `as` in with and except, match captures, type aliases, nonlocal."""
        field = node.child_by_field_name("name") or node.child_by_field_name("left")
        self._bind_target(scope, field or node)

    def call(self, node: Node, scope: str, guard: Guard) -> None:
        callee = text_of(node.child_by_field_name("function"))
        arguments = read_arguments(node)
        kinds = [argument.type for argument in arguments]
        if scope == MODULE and callee in _WRITES_GLOBALS:
            self.is_dynamic = True
        if callee == "setattr" and arguments and text_of(arguments[0]) in _INSTANCE:
            self._note_attribute(scope, "*")
        if not _CALLEE.fullmatch(callee):
            return
        named_or_star = ("keyword_argument", "list_splat", "dictionary_splat")
        self.calls.append(
            Call(
                callee=callee,
                positional=tuple(text_of(n) for n in arguments if n.type not in named_or_star),
                keywords=read_keyword_names(arguments),
                has_star_args="list_splat" in kinds,
                has_star_kwargs="dictionary_splat" in kinds,
                line=line_of(node),
                symbol=scope,
            )
        )


_Handler = Callable[[Walk, Node, str, Guard], _Suite | None]

_HANDLERS: dict[str, _Handler] = {
    "function_definition": Walk.definition,
    "class_definition": Walk.definition,
    "lambda": Walk.lambda_,
    "for_in_clause": Walk.comprehension,
    "try_statement": Walk.try_,
    "if_statement": Walk.if_,
    "with_statement": Walk.with_,
    "import_statement": Walk.import_,
    "import_from_statement": Walk.import_from,
    "global_statement": Walk.global_,
    "nonlocal_statement": Walk.binder,
    "assignment": Walk.assignment,
    "augmented_assignment": Walk.assignment,
    "for_statement": Walk.for_,
    "named_expression": Walk.binder,
    "as_pattern_target": Walk.binder,
    "case_pattern": Walk.binder,
    "type_alias_statement": Walk.binder,
    "call": Walk.call,
}

LANGUAGE = Language(tree_sitter_python.language())
_QUERY = Query(LANGUAGE, "[" + " ".join(f"({kind})" for kind in _HANDLERS) + "] @node")
