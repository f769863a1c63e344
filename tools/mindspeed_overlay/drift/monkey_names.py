"""What expressions in a foreign source tree spell: dotted names, strings, and its own functions."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

Function = ast.FunctionDef | ast.AsyncFunctionDef
_MAX_HOPS = 4


def spell(node: ast.expr | None) -> str:
    """`a.b.c` of a name or an attribute chain, else ""."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def module_of(path: str) -> str:
    """The dotted name of a path."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@dataclass(frozen=True)
class SourceFile:
    """One parsed file."""

    path: str
    source: str
    tree: ast.Module

    @cached_property
    def names(self) -> frozenset[str]:
        """What the module's own scope defines or assigns."""
        assigned = {
            node.id
            for statement in self.tree.body
            if not isinstance(statement, Function | ast.ClassDef)
            for node in ast.walk(statement)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        return frozenset(assigned | set(self.definitions))

    @cached_property
    def imports(self) -> dict[str, str]:
        """Imported names of all scopes, and what they stand for; the last import of one counts."""
        found: dict[str, str] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    root = alias.name.partition(".")[0]
                    found[alias.asname or root] = alias.name if alias.asname else root
            elif isinstance(node, ast.ImportFrom):
                source = self._absolute(node)
                for alias in node.names:
                    found[alias.asname or alias.name] = f"{source}.{alias.name}"
        return found

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.path.removesuffix(".py").split("/")[: -node.level]
        return ".".join([*parts, node.module] if node.module else parts)

    @cached_property
    def definitions(self) -> dict[str, Function | ast.ClassDef]:
        """The definitions of the module's own scope."""
        return {n.name: n for n in self.tree.body if isinstance(n, Function | ast.ClassDef)}

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        """Each node's parent."""
        return {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    def expand(self, node: ast.expr | None) -> str:
        """The dotted name of an expression with its root import resolved, else ""."""
        dotted = spell(node)
        root, dot, rest = dotted.partition(".")
        return f"{self.imports[root]}{dot}{rest}" if root in self.imports else ""

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around a node, innermost first."""
        while node in self.parents:
            node = self.parents[node]
            yield node


@dataclass(frozen=True)
class Found:
    """A definition and the file that holds it."""

    file: SourceFile
    node: Function | ast.ClassDef


@dataclass(frozen=True)
class SourceTree:
    """All files of a tree by path."""

    files: Mapping[str, SourceFile]
    _paths: dict[str, str] = field(default_factory=dict)

    def find(self, file: SourceFile, node: ast.expr | None) -> Found | None:
        """The top-level definition of the tree, or the method, that an expression names."""
        dotted = spell(node)
        for around in file.around(node) if node is not None else ():
            if isinstance(around, Function):
                local = [n for n in around.body if isinstance(n, Function) and n.name == dotted]
                if local:
                    return Found(file, local[0])
        if "." not in dotted and dotted in file.definitions:
            return Found(file, file.definitions[dotted])
        return self._follow(file.expand(node))

    def _follow(self, full: str) -> Found | None:
        for _ in range(_MAX_HOPS):  # through modules that import it on
            module, _, name = full.rpartition(".")
            place = self._find_file(module)
            if place is None:
                owner = self._follow(module) if "." in module else None
                return _find_method(owner, name)
            if name in place.definitions:
                return Found(place, place.definitions[name])
            full = place.imports.get(name, "")
        return None

    def _find_file(self, module: str) -> SourceFile | None:
        """The tree may hold the package, or be it."""
        if not self._paths:
            self._paths.update({module_of(path): path for path in self.files})
        path = self._paths.get(module) or self._paths.get(module.partition(".")[2])
        return self.files[path] if path is not None else None


def _find_method(owner: Found | None, name: str) -> Found | None:
    if owner is None or not isinstance(owner.node, ast.ClassDef):
        return None
    methods = (m for m in owner.node.body if isinstance(m, Function) and m.name == name)
    return next((Found(owner.file, method) for method in methods), None)
