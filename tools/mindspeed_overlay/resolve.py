"""Follow dotted names through a tree: imports, re-exports, definitions, classes and their bases.

Every answer is either certain or None. A name with more than one binding, a parameter, a value, a
computed base class: unknown.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from mindspeed_overlay.module_index import ModuleIndex
from mindspeed_overlay.syntax import MODULE, Binding, Import, Module, Symbol

_MAX_HOPS = 8


@dataclass(frozen=True, slots=True)
class InModule:
    """A module of the tree."""

    module: str


@dataclass(frozen=True, slots=True)
class Definition:
    """A function or class of the tree; what is equal is the place, not the text."""

    module: str
    qualname: str
    symbol: Symbol = field(compare=False)


@dataclass(frozen=True, slots=True)
class Outside:
    """Something that the tree doesn't hold: `torch.nn.Module`, `builtins.object`."""

    dotted: str


@dataclass(frozen=True, slots=True)
class Absent:
    """A name that a module of the tree certainly doesn't bind."""

    module: str
    name: str


Line = list["Definition | Outside | None"]
"""A class and its bases in method resolution order; None stands for an unknown one."""

Target = InModule | Definition | Outside | Absent | None


def scopes_of(scope: str) -> Iterator[str]:
    """A scope and the ones around it, innermost first."""
    while scope != MODULE:
        yield scope
        scope = scope.rpartition(".")[0] or MODULE
    yield MODULE


def join(scope: str, name: str) -> str:
    """The qualified name of a definition in a scope."""
    return name if scope == MODULE else f"{scope}.{name}"


@dataclass(frozen=True)
class Resolver:
    """Name resolution in one tree; remembers what it found."""

    index: ModuleIndex

    @cached_property
    def _members(self) -> dict[tuple[str, str], Target]:
        return {}

    @cached_property
    def _lines(self) -> dict[tuple[str, str], Line]:
        return {}

    def resolve(self, module: str, scope: str, dotted: str, *, hops: int = 0) -> Target:
        """What a dotted name used in a scope of a module stands for."""
        root, *rest = dotted.split(".")
        target = self._root(module, scope, root, hops) if hops <= _MAX_HOPS else None
        for name in rest:
            target = self._attribute(target, name)
        return target

    def _root(self, module: str, scope: str, name: str, hops: int) -> Target:
        parsed = self.index.parse(module)
        if parsed is None or name in parsed.bindings.get(f"{scope}.<hidden>", ()):
            return None
        for around in scopes_of(scope):
            is_class = any(s.kind == "class" for s in parsed.by_qualname.get(around, ()))
            bindings = parsed.bindings.get(around, {}).get(name, ())
            if bindings and (around == scope or not is_class):
                return self._bound(module, parsed, around, name, bindings, hops=hops)
        if self.index.star_sources(module) and self.index.binds(module, name):
            return self._member(module, name, hops=0)
        return None if parsed.is_dynamic else Outside(f"builtins.{name}")

    def _bound(
        self,
        module: str,
        parsed: Module,
        scope: str,
        name: str,
        bindings: tuple[Binding, ...],
        *,
        hops: int,
    ) -> Target:
        first = bindings[0]
        if first.source is not None:
            same = all(
                b.source is not None and _import_key(b.source) == _import_key(first.source)
                for b in bindings
            )
            return self._imported(module, first.source, hops=hops) if same else None
        if len(bindings) == 1 and first.alias:
            return self.resolve(module, scope, first.alias, hops=hops + 1)
        if len(bindings) > 1 or first.kind != "definition":
            return None
        symbols = parsed.by_qualname.get(join(scope, name), ())
        return Definition(module, symbols[0].qualname, symbols[0]) if len(symbols) == 1 else None

    def _imported(self, module: str, found: Import, *, hops: int) -> Target:
        source = self.index.absolute(self.index.paths[module], found)
        if not found.name:
            # `import a.b` binds a, `import a.b as c` binds a.b.
            source = found.bound if found.bound == source.partition(".")[0] else source
            return self._module(source)
        if self.index.presence(source) != "here":
            return Outside(f"{source}.{found.name}")
        return self._member(source, found.name, hops=hops + 1)

    def _module(self, module: str) -> Target:
        return InModule(module) if self.index.presence(module) == "here" else Outside(module)

    def _attribute(self, target: Target, name: str) -> Target:
        match target:
            case InModule(module):
                return self._member(module, name, hops=0)
            case Outside(dotted):
                return Outside(f"{dotted}.{name}")
            case Definition(symbol=symbol) if symbol.kind == "class":
                return self.find_method(target, name)
            case _:
                return None

    def _member(self, module: str, name: str, *, hops: int) -> Target:
        key = (module, name)
        if key not in self._members:
            if hops > _MAX_HOPS:
                return None
            # `from package import submodule` inside the package itself comes back here.
            here = self.index.submodule(module, name)
            self._members[key] = InModule(f"{module}.{name}") if here else None
            self._members[key] = self._find_member(module, name, hops)
        return self._members[key]

    def _find_member(self, module: str, name: str, hops: int) -> Target:
        parsed = self.index.outline(module)
        bindings = parsed.top_level.get(name, ()) if parsed is not None else ()
        if parsed is not None and bindings:
            return self._bound(module, parsed, MODULE, name, bindings, hops=hops)
        if self.index.submodule(module, name):
            return InModule(f"{module}.{name}")
        for source in self.index.star_sources(module):
            here = self.index.presence(source) == "here"
            if here and self.index.exports(source, name) and self.index.binds(source, name):
                return self._member(source, name, hops=hops + 1)
        return None if self.index.binds(module, name) else Absent(module, name)

    def line_of(self, target: Definition) -> Line:
        """A class and its bases in method resolution order; None stands for an unknown one."""
        key = (target.module, target.qualname)
        if key not in self._lines:
            self._lines[key] = [None]  # a class that is its own ancestor
            bases = [self._base(target, text) for text in target.symbol.bases]
            tails: list[Line] = [
                self.line_of(b) if isinstance(b, Definition) else [b] for b in bases
            ]
            self._lines[key] = [target, *_merge([*tails, bases])]
        return self._lines[key]

    def _base(self, owner: Definition, text: str) -> Definition | Outside | None:
        base = self.resolve(owner.module, owner.symbol.parent, text.partition("[")[0])
        return base if isinstance(base, Outside | Definition) else None

    def find_method(self, owner: Definition, name: str, *, skip: int = 0) -> Definition | None:
        """The one function that `owner.name` is, by the class and its bases.

        Args:
            skip: entries of the resolution order to pass over: 1 for `super()`.
        """
        line = self.line_of(owner)
        for entry in line:
            if isinstance(entry, Definition) and {name, "*"} & self._attributes(entry):
                return None
        for entry in line[skip:]:
            if not isinstance(entry, Definition):
                return None
            parsed = self.index.parse(entry.module)
            qualname = entry.qualname
            bindings = parsed.bindings.get(qualname, {}).get(name, ()) if parsed else ()
            if parsed is not None and bindings:
                found = self._bound(entry.module, parsed, qualname, name, bindings, hops=0)
                return found if isinstance(found, Definition) else None
        return None

    def may_bind(self, owner: Definition, name: str) -> bool:
        """Whether the text of one class, without its bases, may give it an attribute."""
        parsed = self.index.parse(owner.module)
        names = parsed.bindings.get(owner.qualname, {}) if parsed is not None else {}
        return bool({name, "__getattr__"} & names.keys() or {name, "*"} & self._attributes(owner))

    def _attributes(self, owner: Definition) -> frozenset[str]:
        parsed = self.index.parse(owner.module)
        symbols = parsed.by_qualname.get(owner.qualname, ()) if parsed is not None else ()
        return frozenset().union(*(symbol.attributes for symbol in symbols))


def _import_key(found: Import) -> tuple[str, int, str]:
    return (found.module, found.level, found.name)


def _merge(
    tails: list[Line],
) -> Line:
    """The C3 merge of the orders of the bases; gives up with an unknown entry."""
    merged: Line = []
    while tails := [tail for tail in tails if tail]:
        heads = [tail[0] for tail in tails]
        free = [h for h in heads if not any(h in tail[1:] for tail in tails)]
        if not free or None in heads:
            return [*merged, None]
        merged.append(free[0])
        tails = [tail[1:] if tail[0] == free[0] else tail for tail in tails]
    return merged
