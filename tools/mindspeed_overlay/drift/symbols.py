"""Upstream symbols of one release: their state, their source, and where one went.

How closely a symbol is looked at depends on its use: what is edited, extended or called counts in
full; of a class that is only called, what its constructor takes; of a class that is only named, and
of modules and variables, that it is there.
"""

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from mindspeed_overlay.drift.uses import Use
from mindspeed_overlay.fingerprint import Fingerprint, fingerprint_symbols
from mindspeed_overlay.module_index import ModuleIndex, module_name
from mindspeed_overlay.resolve import Definition, Resolver
from mindspeed_overlay.syntax import MODULE, Span, parse_module, parse_outline
from mindspeed_overlay.tree import Files

PRESENT = Fingerprint("-", "-")
"""The state of what only has to be there."""

_ALIKE = 0.6  # below this a namesake is no successor worth showing


@dataclass(frozen=True)
class Successor:
    """Where a symbol may have gone.

    Attributes:
        similarity: of the source lines; 1.0 for the same code.
        is_certain: the code is the same, or the old module still gives it by import.
    """

    symbol: str
    similarity: float
    is_certain: bool


@dataclass(frozen=True, eq=False)
class Symbols:
    """The symbols of one release's pristine files."""

    files: Files

    @cached_property
    def _index(self) -> ModuleIndex:
        return ModuleIndex(self.files)

    @cached_property
    def _resolver(self) -> Resolver:
        return Resolver(self._index)

    def path_of(self, module: str) -> str:
        """The path of a module's source, "" where there is none."""
        return self._index.paths.get(module, "")

    def state_of(self, use: Use) -> Fingerprint | None:
        """The state of a symbol as far as its use looks at it; None where it is gone."""
        path = self.path_of(use.module)
        if not path:
            return PRESENT if not use.qualname and self._is_here(use.module) else None
        if not use.qualname:
            return PRESENT
        whole = fingerprint_symbols(self.files[path]).get(use.qualname)
        if whole is None:
            if isinstance(self._resolver.resolve(use.module, MODULE, use.qualname), Definition):
                return None  # defined elsewhere now, and imported here
            bound = "." not in use.qualname and self._index.binds(use.module, use.qualname)
            return PRESENT if bound else None
        if use.how in ("names", "calls") and self._is_class(path, use.qualname):
            return PRESENT if use.how == "names" else Fingerprint(whole.signature, "-")
        return whole

    def _is_here(self, module: str) -> bool:
        return self._index.presence(module) == "here"

    def _is_class(self, path: str, qualname: str) -> bool:
        found = parse_outline(self.files[path]).by_qualname.get(qualname, ())
        return any(symbol.kind == "class" for symbol in found)

    def source_of(self, module: str, qualname: str) -> tuple[str, int]:
        """The source of a symbol, all its definitions together, and the line of the first."""
        path, spans = self.path_of(module), self._spans_of(module, qualname)
        lines = self.files[path].decode(errors="replace").splitlines(keepends=True) if path else []
        text = "".join("".join(lines[first - 1 : last]) for first, last in spans)
        return text, spans[0][0] if spans else 0

    def lines_of(self, module: str, qualname: str) -> tuple[int, int] | None:
        """First and last line of a definition; None for code outside, and for what is not here."""
        spans = self._spans_of(module, qualname) if qualname not in ("", MODULE) else ()
        return (spans[0][0], spans[-1][1]) if spans else None

    def _spans_of(self, module: str, qualname: str) -> tuple[Span, ...]:
        path = self.path_of(module)
        if not path:
            return ()
        # What is defined in a function is left out by the outline.
        spans = parse_outline(self.files[path]).spans_of(qualname)
        return spans or parse_module(self.files[path]).spans_of(qualname)

    def find_successors(self, use: Use, old: "Symbols") -> list[Successor]:
        """Where a symbol that is gone here may be now, the likeliest first, at most three.

        Certain is only what its old module still gives by import, and code that is the same; the
        rest are namesakes, shown with how much of their source is alike.
        """
        if not use.qualname or use.qualname == MODULE:
            return self._find_modules(use, old)
        imported = self._resolver.resolve(use.module, MODULE, use.qualname)
        here = (imported.module, imported.qualname) if isinstance(imported, Definition) else None
        found = []
        for module, qualname in {here} if here else self._find_namesakes(use):
            alike = self._compare(use, old, module, qualname)
            if alike >= _ALIKE or here:
                certain = alike == 1.0 or here is not None
                found.append(Successor(f"{module}:{qualname}", round(alike, 2), certain))
        return sorted(found, key=lambda s: (-s.similarity, s.symbol))[:3]

    def _compare(self, use: Use, old: "Symbols", module: str, qualname: str) -> float:
        before = fingerprint_symbols(old.files[old.path_of(use.module)]).get(use.qualname)
        after = fingerprint_symbols(self.files[self.path_of(module)]).get(qualname)
        if before and after and after.body == before.body:
            return 1.0
        # Of code that is not the same, the looks may be.
        alike = _compare(
            old.source_of(use.module, use.qualname)[0], self.source_of(module, qualname)[0]
        )
        return min(alike, 0.99)

    def _find_namesakes(self, use: Use) -> Iterator[tuple[str, str]]:
        """Definitions of the same name; of a method in any class, so that split ones are found."""
        name = use.qualname.rpartition(".")[2]
        spelled = re.compile(rb"\b(?:def|class)[ \t]+%s\b" % re.escape(name.encode()))
        special = name.startswith("__")
        for path, data in self.files.items():
            if path.endswith(".py") and path.startswith("megatron/") and spelled.search(data):
                for symbol in parse_outline(data).symbols:
                    wanted = symbol.qualname == use.qualname if special else symbol.name == name
                    if wanted:
                        yield module_name(path), symbol.qualname

    def _find_modules(self, use: Use, old: "Symbols") -> list[Successor]:
        """Files of the same name, or of the same content, as a module that is gone."""
        path = old.path_of(use.module)
        if not path:
            return []
        source, name = old.files[path].decode(errors="replace"), path.rpartition("/")[2]
        found = []
        for other, data in self.files.items():
            if other in old.files or not other.endswith(".py"):
                continue
            if data == old.files[path]:
                found.append(Successor(module_name(other), 1.0, True))
            elif other.endswith(f"/{name}") and name != "__init__.py":
                alike = _compare(source, data.decode(errors="replace"))
                if alike >= _ALIKE:
                    found.append(Successor(module_name(other), round(alike, 2), False))
        return sorted(found, key=lambda s: (-s.similarity, s.symbol))[:3]


def _compare(one: str, other: str) -> float:
    matcher = difflib.SequenceMatcher(None, one.splitlines(), other.splitlines(), autojunk=False)
    return matcher.ratio() if matcher.real_quick_ratio() >= _ALIKE else 0.0
