"""The names that a replacing function takes from its own module, as imports for a draft."""

import ast
import builtins
from collections.abc import Iterator

from mindspeed_overlay.drift.monkey_names import Found, Function
from mindspeed_overlay.module_index import ModuleIndex


class NoDraftError(Exception):
    """The message says why there is none."""


def find_imports(found: Found, index: ModuleIndex, module: str, own: str) -> list[str]:
    """Imports of what a replacement takes from its own module and the upstream one lacks."""
    parsed = index.parse(module)
    assert parsed is not None
    lines = []
    for name in sorted(_free_names(found)):
        full = found.file.imports.get(name, "")
        if name in found.file.names:
            full = f"{own}.{name}"
        if not full or full == f"{module}.{name}":
            continue
        foreign = full.startswith(f"{own.partition('.')[0]}.")
        if name in parsed.top_level and not foreign:
            continue
        source, _, last = full.rpartition(".")
        alias = "" if last == name else f" as {name}"
        lines.append(f"from {source} import {last}{alias}" if source else f"import {full}{alias}")
    return lines


def _free_names(found: Found) -> Iterator[str]:
    """The names that a function reads and does not bind."""
    node = found.node
    assert isinstance(node, Function)
    bound: set[str] = set()
    read: set[str] = set()
    inner = (node.args, *node.body)  # what decorators name stays outside
    for part in (part for top in inner for part in ast.walk(top)):
        if isinstance(part, ast.Name):
            (read if isinstance(part.ctx, ast.Load) else bound).add(part.id)
        elif isinstance(part, ast.arg):
            bound.add(part.arg)
        elif isinstance(part, ast.alias):
            bound.add(part.asname or part.name.partition(".")[0])
        elif isinstance(part, Function | ast.ClassDef | ast.ExceptHandler):
            bound.add(part.name or "")
        elif isinstance(part, ast.Nonlocal):
            bound.update(part.names)
        elif isinstance(part, ast.Global):
            raise NoDraftError(f"it keeps state in its own module ({', '.join(part.names)})")
    yield from read - bound - set(dir(builtins))
