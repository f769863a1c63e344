"""Which untouched modules a change of the touched ones can break.

A module is reached when it mentions a name that a touched module no longer gives in the same way:
a name removed, a signature that refuses calls it took, a class whose bases or constructor changed,
and whatever inherits from such a class or renames such a name on import. Parameters added with a
default break nobody, so most patches reach nothing.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from mindspeed_overlay.module_index import ModuleIndex, module_name
from mindspeed_overlay.signatures import is_compatible
from mindspeed_overlay.syntax import (
    MODULE,
    Module,
    Parameter,
    Signature,
    Symbol,
    parse_module,
)
from mindspeed_overlay.tree import Files


@dataclass(frozen=True)
class Reach:
    """What a change of some modules can break.

    Attributes:
        names: names no longer given in the same way, each with the changed paths that did it.
        modules: untouched modules that mention such a name, likewise.
    """

    files: Files
    names: Mapping[str, frozenset[str]]
    modules: Mapping[str, frozenset[str]]

    def mentions(self, path: str) -> bool:
        """Whether a module mentions any of the names."""
        data = self.files[path]
        return any(name.encode() in data for name in self.names)

    def blame(self, path: str, touched: Mapping[str, tuple[str, ...]]) -> list[str]:
        """The overlays that changed a module or, for an untouched one, what it depends on."""
        causes = sorted(self.modules.get(path, {path}))
        return [*dict.fromkeys(i for cause in causes for i in touched.get(cause, ()))]


def find_reach(before: ModuleIndex, after: ModuleIndex, changed: Collection[str]) -> Reach:
    """The names and untouched modules that changes of some paths can break."""
    names: dict[str, frozenset[str]] = {}
    for path in changed:
        if path in before.files:
            module = module_name(path)
            for name in _broken_names(before.parse(module), after.parse(module), module):
                names[name] = names.get(name, frozenset()) | {path}
    modules = _spread(after, names, frozenset(changed)) if names else {}
    return Reach(after.files, names, modules)


def _broken_names(old: Module | None, new: Module | None, module: str) -> Iterator[str]:
    if old is None or new is None:
        yield module.rpartition(".")[2]
        return
    yield from old.top_level.keys() - new.top_level.keys()
    for qualname, symbols in old.by_qualname.items():
        changed = new.by_qualname.get(qualname, ())
        same = len(symbols) == len(changed) and all(map(_keeps_contract, symbols, changed))
        if not same and (symbols[0].parent == MODULE or _is_in_class(old, symbols[0])):
            # Methods are known through their class only.
            yield qualname.partition(".")[0]


def _is_in_class(module: Module, symbol: Symbol) -> bool:
    return any(s.kind == "class" for s in module.by_qualname.get(symbol.parent, ()))


def _keeps_contract(before: Symbol, after: Symbol) -> bool:
    if (before.kind, before.bases, before.class_keywords, before.decorators) != (
        after.kind,
        after.bases,
        after.class_keywords,
        after.decorators,
    ):
        return False
    if before.signature is None or after.signature is None:
        return is_compatible(_fields_of(before), _fields_of(after))
    return is_compatible(before.signature, after.signature)


def _fields_of(symbol: Symbol) -> Signature:
    return Signature(
        tuple(Parameter(f.name, "plain", f.default is not None) for f in symbol.fields)
    )


def _spread(
    index: ModuleIndex, causes: dict[str, frozenset[str]], changed: frozenset[str]
) -> dict[str, frozenset[str]]:
    sources = {p: d for p, d in index.files.items() if p.endswith(".py")}
    reached: dict[str, frozenset[str]] = {}
    fresh = dict(causes)
    while fresh:
        names = {name.encode(): paths for name, paths in fresh.items()}
        fresh = {}
        for path, data in sources.items():
            hits = [paths for name, paths in names.items() if name in data]
            if not hits:
                continue
            found = frozenset().union(*hits)
            if path not in changed:
                reached[path] = reached.get(path, frozenset()) | found
            for name in _derived_names(parse_module(data), causes.keys()):
                if name not in causes:
                    causes[name] = fresh[name] = found
    return reached


def _derived_names(module: Module, names: Collection[str]) -> Iterator[str]:
    """Classes that inherit from a class of these names, and other names given on import."""
    for symbol in module.symbols:
        bases = (base.partition("[")[0].rpartition(".")[2] for base in symbol.bases)
        if any(base in names for base in bases):
            yield symbol.name
    for found in module.imports:
        if found.name in names and found.bound != found.name:
            yield found.bound
