"""Read single nodes of tree-sitter's Python grammar: names, signatures, arguments, `__all__`."""

from collections.abc import Iterator
from typing import Literal

from tree_sitter import Node

from mindspeed_overlay.syntax_model import Parameter, Signature


def text_of(node: Node | None) -> str:
    """The source of a node, `""` for none."""
    raw = node.text if node is not None else None
    return raw.decode(errors="replace") if raw is not None else ""


def line_of(node: Node) -> int:
    """The line a node begins on, from 1."""
    return node.start_point[0] + 1


def last_line_of(node: Node) -> int:
    """The line a node ends on, from 1; a newline at its end doesn't count."""
    row, column = node.end_point
    return row + (column > 0)


def named(node: Node | None) -> list[Node]:
    """The named children without comments; none for no node."""
    return [n for n in node.named_children if n.type != "comment"] if node is not None else []


def identifiers_in(target: Node | None) -> Iterator[Node]:
    """The names a target binds: of `a`, `(a, *b)`, `[a, b]`; none of `a.b` and `a[i]`."""
    if target is None or target.type in ("attribute", "subscript", "call"):
        return
    if target.type == "identifier":
        yield target
    for child in target.named_children:
        yield from identifiers_in(child)


def read_arguments(call: Node) -> list[Node]:
    """The arguments of a call; the generator of `f(x for x in y)` is one."""
    arguments = call.child_by_field_name("arguments")
    if arguments is not None and arguments.type == "generator_expression":
        return [arguments]
    return named(arguments)


def read_bases(superclasses: Node | None) -> tuple[str, ...]:
    """Source text of the positional bases of a class."""
    return tuple(text_of(n) for n in named(superclasses) if n.type != "keyword_argument")


def read_keyword_names(arguments: list[Node]) -> tuple[str, ...]:
    """The names of the keyword arguments, in order."""
    keywords = (n for n in arguments if n.type == "keyword_argument")
    return tuple(text_of(n.child_by_field_name("name")) for n in keywords)


def read_signature(parameters: Node | None) -> Signature:
    """The parameters of a def or lambda."""
    found: list[Parameter] = []
    keyword_only = False
    for child in named(parameters):
        inner = child.named_children[0] if child.type == "typed_parameter" else child
        if child.type == "positional_separator":
            found = [Parameter(p.name, "positional-only", p.has_default) for p in found]
        elif child.type == "keyword_separator":
            keyword_only = True
        elif inner.type == "list_splat_pattern":
            found.append(Parameter(text_of(inner).lstrip("* "), "variadic"))
            keyword_only = True
        elif inner.type == "dictionary_splat_pattern":
            found.append(Parameter(text_of(inner).lstrip("* "), "keywords"))
        else:
            name = child.child_by_field_name("name")
            kind: Literal["keyword-only", "plain"] = "keyword-only" if keyword_only else "plain"
            found.append(Parameter(text_of(name or inner), kind, name is not None))
    return Signature(tuple(found))


def read_all_names(root: Node) -> tuple[str, ...] | None:
    """`__all__` where it is one literal list or tuple of strings, assigned once; else None."""
    values: list[Node | None] = []
    for statement in root.named_children:
        node = statement.named_children[0] if statement.named_children else statement
        if node.type in ("assignment", "augmented_assignment", "call"):
            left = node.child_by_field_name("left") or node.child_by_field_name("function")
            if text_of(left).partition(".")[0] == "__all__":
                values.append(node.child_by_field_name("right"))
    if len(values) != 1 or values[0] is None or values[0].type not in ("list", "tuple"):
        return None
    items = named(values[0])
    if any(n.type != "string" for n in items):
        return None
    return tuple(text_of(n).strip("'\"") for n in items)
