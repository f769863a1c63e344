"""Where a Python module uses torch_npu, read off its syntax tree."""

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

_ROOTS = {"torch.npu": "torch_npu.npu", "torch.ops.npu": "torch.ops.npu", "torch_npu": "torch_npu"}


@dataclass(frozen=True)
class Use:
    """One use of torch_npu in a file: a dotted name, and how it is called and unpacked."""

    name: str
    line: int
    call: ast.Call | None = None
    unpacked: int | None = None
    index: int | None = None


def find_uses(tree: ast.Module) -> Iterator[Use]:
    """Yield the uses of torch_npu in `tree`, the longest dotted name of each."""
    aliases = _aliases(tree)
    yield from _imported(tree)
    for node, parents in _walk(tree, ()):
        if not isinstance(node, ast.Attribute | ast.Name) or _inside_attribute(node, parents):
            continue
        name = _resolve(node, aliases)
        if name is None or _guarded(name, parents, aliases):
            continue
        parent = parents[-1] if parents else None
        call = parent if isinstance(parent, ast.Call) and parent.func is node else None
        outer = parents[-2] if call is not None and len(parents) > 1 else None
        yield Use(name, node.lineno, call, _unpacked(call, outer), _index(call, outer))


def _aliases(tree: ast.Module) -> dict[str, str]:
    aliases = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                local = alias.asname or alias.name.partition(".")[0]
                aliases[local] = alias.name if alias.asname else local
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                aliases[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return {local: full for local, full in aliases.items() if full.startswith("torch")}


def _imported(tree: ast.Module) -> Iterator[Use]:
    for node, parents in _walk(tree, ()):
        tried = any(isinstance(parent, ast.Try) for parent in parents)
        if isinstance(node, ast.ImportFrom) and node.module and not node.level and not tried:
            for alias in node.names:
                name = _canonical(f"{node.module}.{alias.name}")
                if name and alias.name != "*":
                    yield Use(name, node.lineno)


def _canonical(name: str) -> str | None:
    for prefix, root in _ROOTS.items():
        if name.startswith(f"{prefix}."):
            return root + name[len(prefix) :]
    return None


def _resolve(node: ast.expr, aliases: dict[str, str]) -> str | None:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in aliases:
        return None
    return _canonical(".".join([aliases[node.id], *reversed(parts)]))


def _walk(
    node: ast.AST, parents: tuple[ast.AST, ...]
) -> Iterator[tuple[ast.AST, tuple[ast.AST, ...]]]:
    for child in ast.iter_child_nodes(node):
        yield child, parents
        yield from _walk(child, (*parents, child))


def _inside_attribute(node: ast.AST, parents: Sequence[ast.AST]) -> bool:
    return bool(parents) and isinstance(parents[-1], ast.Attribute) and parents[-1].value is node


def _guarded(name: str, parents: Iterable[ast.AST], aliases: dict[str, str]) -> bool:
    """Whether an enclosing `if hasattr(owner, "name")` asks for this very name."""
    for parent in parents:
        if not isinstance(parent, ast.If | ast.IfExp):
            continue
        for call in ast.walk(parent.test):
            match call:
                case ast.Call(
                    func=ast.Name(id="hasattr"), args=[owner, ast.Constant(value=str(attribute))]
                ):
                    base = _resolve(owner, aliases) or _resolve_root(owner, aliases)
                    if base and f"{name}.".startswith(f"{base}.{attribute}."):
                        return True
    return False


def _resolve_root(node: ast.expr, aliases: dict[str, str]) -> str | None:
    text = ast.unparse(node)
    first, _, rest = text.partition(".")
    full = ".".join(filter(None, [aliases.get(first, first), rest]))
    return _ROOTS.get(full)


def _unpacked(call: ast.Call | None, outer: ast.AST | None) -> int | None:
    match outer:
        case ast.Assign(targets=[ast.Tuple(elts=elements) | ast.List(elts=elements)]):
            starred = any(isinstance(element, ast.Starred) for element in elements)
            return None if call is None or starred else len(elements)
    return None


def _index(call: ast.Call | None, outer: ast.AST | None) -> int | None:
    match outer:
        case ast.Subscript(slice=ast.Constant(value=int(index))) if outer.value is call:
            return index
        case ast.Subscript(
            slice=ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(index)))
        ) if outer.value is call:
            return -index
    return None
