"""Read the runtime patches that a source tree makes to Megatron: no import, no execution.

Found are calls that register a patch (any function whose name holds "patch", with a first argument
that spells a target: `register_patch("megatron.a.b", new)`), `setattr(megatron_object, "name",
new)`, assignments onto attributes of what was imported from `megatron`, and modules put into
`sys.modules`. Targets in literal tables and loops are followed; what only a run knows is listed
as unread. A replacement counts as a wrapper where it is one: where it uses what it is given.
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from mindspeed_overlay.drift.monkey_names import Found, Function, SourceFile, SourceTree, spell

Effect = Literal["replaces", "wraps"]

_ROOT = "megatron."
_WRAPPER_NAMES = ("wrapper", "decorator")


@dataclass(frozen=True)
class Registration:
    """One runtime patch.

    Attributes:
        target: the dotted name it sets.
        new: source text of what it sets, "" for a stand-in.
        effect: `wraps` where what it sets calls what was there, else `replaces`.
        found: the definition that it sets, where the tree holds it.
    """

    target: str
    path: str
    line: int
    new: str
    effect: Effect
    found: Found | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class MonkeyPatches:
    """All that a tree registers, the places that could not be read, and the files that could."""

    registrations: tuple[Registration, ...]
    unread: tuple[str, ...]
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)


def read_monkey_patches(root: Path) -> MonkeyPatches:
    """Read every Python file below `root`."""
    files: dict[str, SourceFile] = {}
    unread: list[str] = []
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        try:
            source = path.read_text("utf-8")
            files[name] = SourceFile(name, source, ast.parse(source))
        except (SyntaxError, ValueError, RecursionError) as error:
            unread.append(f"{name}: not parsed: {error}")
    tree = SourceTree(files)
    found: list[Registration] = []
    for file in files.values():
        reader = _Reader(tree, file)
        found += reader.read()
        unread += reader.unread
    sources = {name: file.source.encode() for name, file in files.items()}
    return MonkeyPatches(tuple(found), tuple(unread), sources)


class _Reader:
    """Reads one file."""

    def __init__(self, tree: SourceTree, file: SourceFile) -> None:
        self.unread: list[str] = []
        self._tree, self._file = tree, file

    def read(self) -> Iterator[Registration]:
        for node in ast.walk(self._file.tree):
            if isinstance(node, ast.Call):
                yield from self._read_call(node)
            elif isinstance(node, ast.Tuple | ast.List) and len(node.elts) > 1:
                yield from self._read_row(node)
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    yield from self._read_assignment(target, node.value)

    def _read_call(self, call: ast.Call) -> Iterator[Registration]:
        name = spell(call.func).rpartition(".")[2]
        if name == "setattr" and len(call.args) == 3:
            owner = self._file.expand(call.args[0])
            if f"{owner}.".startswith(_ROOT):
                for part in self._read_strings(call.args[1], call):
                    yield self._make(f"{owner}.{part}", call, call.args[2])
            return
        keywords = {k.arg: k.value for k in call.keywords if k.arg}
        first = call.args[0] if call.args else keywords.get("orig_func_name")
        second = call.args[1] if len(call.args) > 1 else keywords.get("new_func")
        if "patch" not in name or first is None:
            return
        targets = self._read_strings(first, call)
        if not targets and name == "register_patch" and not self._is_row_of_table(first, call):
            text = ast.unparse(first)
            self.unread.append(f"{self._file.path}:{call.lineno}: the target {text} is computed")
        for target in targets:
            if target.startswith(_ROOT):
                yield self._make(target, call, second)

    def _read_strings(self, node: ast.expr, at: ast.AST) -> list[str]:
        """The strings an expression may be, as far as literals and literal loops decide it."""
        if isinstance(node, ast.Constant):
            return [node.value] if isinstance(node.value, str) else []
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            left, right = self._read_strings(node.left, at), self._read_strings(node.right, at)
            return [one + other for one in left for other in right]
        if isinstance(node, ast.JoinedStr):
            found = [""]
            for part in node.values:
                value = part.value if isinstance(part, ast.FormattedValue) else part
                found = [one + other for one in found for other in self._read_strings(value, at)]
            return found
        return self._read_name(node, at) if isinstance(node, ast.Name) else []

    def _read_name(self, node: ast.Name, at: ast.AST) -> list[str]:
        for around in self._file.around(at):
            if isinstance(around, ast.For) and spell(around.target) == node.id:
                items = around.iter.elts if isinstance(around.iter, ast.List | ast.Tuple) else []
                return [s for item in items for s in self._read_strings(item, around)]
            if isinstance(around, Function | ast.Module):
                values = [
                    statement.value
                    for statement in around.body
                    if isinstance(statement, ast.Assign) and spell(statement.targets[0]) == node.id
                ]
                if len(values) == 1 and not isinstance(values[0], ast.Name):
                    return self._read_strings(values[0], around)
        return []

    def _is_row_of_table(self, name: ast.expr, call: ast.Call) -> bool:
        """Whether `for target, new in table: register(target, new)` is around a call."""
        return any(
            isinstance(around, ast.For)
            and isinstance(around.target, ast.Tuple)
            and spell(name) in map(spell, around.target.elts)
            for around in self._file.around(call)
        )

    def _read_row(self, row: ast.Tuple | ast.List) -> Iterator[Registration]:
        """`("megatron.a.b", new, ...)`: a row of a table that something registers."""
        first, second = row.elts[:2]
        named = isinstance(first, ast.Constant) and str(first.value).startswith(_ROOT)
        if named and isinstance(second, ast.Name | ast.Attribute):
            yield self._make(str(first.value), row, second)  # type: ignore[attr-defined]

    def _read_assignment(self, target: ast.expr, value: ast.expr) -> Iterator[Registration]:
        if isinstance(target, ast.Subscript) and spell(target.value) == "sys.modules":
            for name in self._read_strings(target.slice, target):
                if name.startswith(_ROOT):
                    yield self._make(name, target, value)
        elif isinstance(target, ast.Attribute):
            full = self._file.expand(target)
            if full.startswith(_ROOT):
                yield self._make(full, target, value)

    def _make(self, target: str, at: ast.expr, new: ast.expr | None) -> Registration:
        text = ast.unparse(new) if new is not None else ""
        found = self._tree.find(self._file, new)
        effect: Effect = "wraps" if self._wraps(target, new, found) else "replaces"
        return Registration(target, self._file.path, at.lineno, text, effect, found)

    def _wraps(self, target: str, new: ast.expr | None, found: Found | None) -> bool:
        """Whether what is set calls what it takes the place of."""
        if isinstance(new, ast.Call):  # wrap(original), partial(original, ...)
            return any(self._file.expand(argument) == target for argument in new.args)
        if not spell(new).endswith(_WRAPPER_NAMES):
            return False
        if found is None:
            return True
        return isinstance(found.node, Function) and _uses_its_function(found.node)


def _uses_its_function(wrapper: Function) -> bool:
    """Whether a decorator's result calls, or hands on, the function it was given."""
    parameters = wrapper.args.posonlyargs + wrapper.args.args
    if not parameters:
        return False
    given = parameters[0].arg
    loads = [
        node
        for statement in wrapper.body
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and node.id == given
    ]
    kept_looks = [
        argument
        for statement in wrapper.body
        for node in ast.walk(statement)
        if isinstance(node, ast.Call) and spell(node.func).rpartition(".")[2] == "wraps"
        for argument in node.args
    ]
    return len(loads) > len(kept_looks)
