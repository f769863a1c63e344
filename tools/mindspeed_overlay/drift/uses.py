"""Which upstream symbols an overlay edits, extends, calls or names on one release.

Edited ones are the symbols of its hunks. The others are found by reading its new files, and the
lines that its patches add, in the patched tree: imports, calls, bases, attributes of imported
modules, and dotted names in strings (for `sys.modules` and `import_module`).
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from mindspeed_overlay.apply import Landing
from mindspeed_overlay.build import Patched
from mindspeed_overlay.module_index import ModuleIndex, module_name
from mindspeed_overlay.patch_model import Hunk
from mindspeed_overlay.resolve import Definition, InModule, Outside, Resolver, Target
from mindspeed_overlay.syntax import MODULE, Module, parse_module
from mindspeed_overlay.tree import Files

How = Literal["edits", "extends", "calls", "names"]
STRENGTH: tuple[How, ...] = ("edits", "extends", "calls", "names")
"""The closest relation first: a symbol used in several ways counts by its first."""

_UPSTREAM = "megatron."
_STRING = re.compile(rb"""["'](megatron(?:\.[^\W\d]\w*)+)["']""")
_IMPORT_LINE = re.compile(rb"((?:from|import)\s.*|[\w.]+(?: as \w+)?,|\)|#.*)?")
_ATTRIBUTES = r"(?<![\w.]){}((?:\.[^\W\d]\w*)+)"


@dataclass(frozen=True, order=True)
class Use:
    """One upstream symbol, and the closest way in which an overlay uses it.

    Attributes:
        module: dotted, such as `megatron.core.utils`.
        qualname: of a definition or a variable; `<module>` for code outside definitions, "" for the
            module as a whole.
    """

    module: str
    qualname: str
    how: How

    @property
    def symbol(self) -> str:
        """`module:qualname`, one spelling everywhere."""
        return f"{self.module}:{self.qualname}" if self.qualname else self.module


def find_uses(overlay: str, patched: Patched, own: Iterable[str], pristine: Files) -> list[Use]:
    """All upstream symbols that an overlay uses, each once.

    Args:
        overlay: its id.
        patched: the tree with it and what it requires.
        own: the paths of its new files.
        pristine: the release's files; what is not in them is not upstream's.
    """
    finder = _Finder(Resolver(ModuleIndex(patched.files)), pristine)
    found: list[Use] = []
    for landing in patched.landings:
        if landing.overlay == overlay and landing.patch.target.endswith(".py"):
            module = module_name(landing.patch.target)
            found += (_edited(module, hunk) for hunk in landing.patch.hunks)
            found += finder.find(landing.patch.target, lines=_added_lines(landing, patched))
    for path in own:
        if path.endswith(".py"):
            found += finder.find(path, lines=None)
    closest: dict[str, Use] = {}
    for use in found:
        known = closest.get(use.symbol)
        if known is None or STRENGTH.index(use.how) < STRENGTH.index(known.how):
            closest[use.symbol] = use
    return sorted(closest.values())


def _edited(module: str, hunk: Hunk) -> Use:
    """The symbol of a hunk; among imports the module alone, as the gate checks their names."""
    edited = (line[1:].strip() for line in hunk.lines if line[:1] != b" ")
    if hunk.symbol == MODULE and all(_IMPORT_LINE.fullmatch(line) for line in edited):
        return Use(module, "", "edits")
    return Use(module, hunk.symbol, "edits")


def _added_lines(landing: Landing, patched: Patched) -> set[int]:
    """Lines of the finished file that hold text which this patch added."""
    added = {line[1:] for hunk in landing.patch.hunks for line in hunk.lines if line[:1] == b"+"}
    added -= {line[1:] for hunk in landing.patch.hunks for line in hunk.lines if line[:1] == b"-"}
    lines = patched.files[landing.patch.target].split(b"\n")
    return {number for number, line in enumerate(lines, 1) if line + b"\n" in added}


@dataclass(frozen=True)
class _Finder:
    resolver: Resolver
    pristine: Files

    def find(self, path: str, *, lines: set[int] | None) -> Iterator[Use]:
        """What a module uses, on all its lines or on some."""
        module, data = module_name(path), self.resolver.index.files[path]
        parsed = parse_module(data)
        for found in parsed.imports:
            if lines is None or found.line in lines:
                source = self.resolver.index.absolute(path, found)
                yield from self._use(source, found.name, "names")
        for call in parsed.calls:
            if lines is None or call.line in lines:
                scope = call.symbol
                yield from self._resolved(module, scope, call.callee, "calls")
        for symbol in parsed.symbols:
            if lines is None or symbol.def_line in lines:
                for base in symbol.bases:
                    name = base.partition("[")[0]
                    yield from self._resolved(module, symbol.parent, name, "extends")
        yield from self._find_attributes(module, parsed, data, lines)
        for match in _STRING.finditer(data):
            if lines is None or data.count(b"\n", 0, match.start()) + 1 in lines:
                yield from self._spell(match[1].decode())

    def _find_attributes(
        self, module: str, parsed: Module, data: bytes, lines: set[int] | None
    ) -> Iterator[Use]:
        """`parallel_state.get_rank` without a call: what is handed on, wrapped or compared."""
        text = data.decode(errors="replace")
        for scope, names in parsed.bindings.items():
            for name, bindings in names.items():
                if bindings[0].source is None:
                    continue
                target = self.resolver.resolve(module, scope, name)
                if not isinstance(target, InModule) or not target.module.startswith("megatron"):
                    continue
                for match in re.finditer(_ATTRIBUTES.format(re.escape(name)), text):
                    if lines is None or text.count("\n", 0, match.start()) + 1 in lines:
                        yield from self._spell(target.module + match[1])

    def _spell(self, dotted: str) -> Iterator[Use]:
        """The longest module that begins a dotted name, and the name in it."""
        parts = dotted.split(".")
        for size in range(len(parts), 1, -1):
            module = ".".join(parts[:size])
            if self.resolver.index.presence(module) == "here":
                yield from self._use(module, parts[size] if size < len(parts) else "", "names")
                return

    def _resolved(self, module: str, scope: str, dotted: str, how: How) -> Iterator[Use]:
        target = self.resolver.resolve(module, scope, dotted)
        if isinstance(target, Definition):
            yield from self._definition(target, how)

    def _use(self, module: str, name: str, how: How) -> Iterator[Use]:
        if not f"{module}.".startswith(_UPSTREAM):
            return
        target: Target = InModule(module)
        if name not in ("", "*"):
            target = self.resolver.resolve(module, MODULE, name)
            if isinstance(target, Outside) and self.resolver.index.submodule(module, name):
                target = InModule(f"{module}.{name}")
        if isinstance(target, Definition):
            yield from self._definition(target, how)
        elif isinstance(target, InModule):
            yield from self._known(Use(target.module, "", how))
        else:  # a variable, or one of several definitions
            yield from self._known(Use(module, name, how))

    def _definition(self, target: Definition, how: How) -> Iterator[Use]:
        if target.qualname != MODULE:
            yield from self._known(Use(target.module, target.qualname, how))

    def _known(self, use: Use) -> Iterator[Use]:
        place = use.module.replace(".", "/")
        here = any(f"{place}{end}" in self.pristine for end in (".py", "/__init__.py"))
        if here and use.module.startswith("megatron"):
            yield use
