"""Read the structure of Python source: definitions, bindings, imports, calls.

The grammar is tree-sitter's, so the Python that runs the tool doesn't matter: syntax newer than it
parses, and broken text gives the structure of what is whole. Whether text is legal for some Python
is not decided here but by the gate's linter.
"""

import re
from functools import lru_cache
from weakref import WeakValueDictionary

from tree_sitter import Parser

from mindspeed_overlay.syntax_model import (
    MODULE,
    Binding,
    Call,
    Field,
    Import,
    Module,
    Parameter,
    Signature,
    Span,
    Symbol,
)
from mindspeed_overlay.syntax_nodes import read_all_names
from mindspeed_overlay.syntax_walk import LANGUAGE, Walk

__all__ = [
    "MODULE",
    "Binding",
    "Call",
    "Field",
    "Import",
    "Module",
    "Parameter",
    "Signature",
    "Span",
    "Symbol",
    "parse_module",
    "parse_outline",
]

_GLOBAL = re.compile(rb"^[ \t]+global[ \t]+(\w+(?:[ \t]*,[ \t]*\w+)*)[ \t\r]*(?:#|$)", re.MULTILINE)
_PARSER = Parser(LANGUAGE)
_whole: WeakValueDictionary[bytes, Module] = WeakValueDictionary()


@lru_cache(maxsize=2048)
def parse_module(data: bytes) -> Module:
    """The structure of one module; cached by content for the life of the process.

    Args:
        data: source in any encoding that keeps ASCII, with LF or CRLF line ends (lines are what
            patches count: a lone CR doesn't end one). Bytes that are not UTF-8 appear replaced in
            names and don't disturb anything else.
    """
    module = _whole[data] = _parse(data, outline=False)
    return module


@lru_cache(maxsize=2048)
def parse_outline(data: bytes) -> Module:
    """The same without what stands in function bodies, in two thirds of the time.

    What functions bind in the module by `global` is kept; attributes, calls, and definitions and
    imports inside functions are missing, unless the module was parsed whole before.
    """
    return _whole.get(data) or _parse(data, outline=True)


def _parse(data: bytes, *, outline: bool) -> Module:
    root = _PARSER.parse(data).root_node
    walk = Walk(outline=outline)
    walk.run(root)
    if outline:
        for names in _GLOBAL.findall(data):
            walk.bind_globals(names.decode(errors="replace").replace(",", " ").split())
    return Module(
        symbols=walk.build_symbols(),
        bindings={
            scope: {name: tuple(found) for name, found in names.items()}
            for scope, names in walk.bindings.items()
        },
        imports=tuple(walk.imports),
        calls=tuple(walk.calls),
        all_names=read_all_names(root),
        is_dynamic=walk.is_dynamic or "__getattr__" in walk.bindings[MODULE],
        has_error=root.has_error,
        num_lines=data.count(b"\n") + (not data.endswith(b"\n")),
    )
