"""Calls in a syntax tree: what is called, with which arguments."""

from collections.abc import Iterable, Iterator

from tree_sitter import Node

from mindspeed_overlay.port.units import Unit, node_key


def list_calls(units: Iterable[Unit]) -> Iterator[Node]:
    """Every call in some units, outer ones before inner ones."""
    waiting = [node for unit in units for node in unit.nodes]
    while waiting:
        node = waiting.pop(0)
        if node.type == "call":
            yield node
        waiting += node.named_children


def callee_of(call: Node) -> bytes:
    """The key of what is called."""
    function = call.child_by_field_name("function")
    return node_key(function) if function is not None else b""


def list_arguments(call: Node) -> list[Node]:
    """The arguments of a call, in order."""
    arguments = call.child_by_field_name("arguments")
    children = arguments.named_children if arguments is not None else []
    return [child for child in children if child.type != "comment"]


def keyword_of(argument: Node) -> bytes:
    """The name of a keyword argument, empty for others."""
    name = argument.child_by_field_name("name")
    return node_key(name) if argument.type == "keyword_argument" and name is not None else b""
