"""What the tool knows of one Python module: values only, no parser and no tree.

Qualified names are dotted without `<locals>`: `MLP.forward`, `outer.inner`. Code outside every
definition belongs to `<module>`. Lines count from 1.
"""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

MODULE = "<module>"

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a function; `variadic` and `keywords` are `*args` and `**kwargs`."""

    name: str
    kind: Literal["positional-only", "plain", "variadic", "keyword-only", "keywords"]
    has_default: bool = False


@dataclass(frozen=True, slots=True)
class Signature:
    """The parameters of a function, in the order of the source."""

    parameters: tuple[Parameter, ...] = ()

    @property
    def has_varargs(self) -> bool:
        """Whether it takes any number of positional arguments."""
        return any(p.kind == "variadic" for p in self.parameters)

    @property
    def has_kwargs(self) -> bool:
        """Whether it takes any keyword."""
        return any(p.kind == "keywords" for p in self.parameters)

    def positional(self) -> tuple[Parameter, ...]:
        """The parameters that a positional argument can reach."""
        return tuple(p for p in self.parameters if p.kind in ("positional-only", "plain"))


@dataclass(frozen=True, slots=True)
class Field:
    """An annotated name in a class body: a field, where the class is a dataclass."""

    name: str
    annotation: str
    default: str | None
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Symbol:
    """One definition: a function or a class.

    Attributes:
        first_line: of the first decorator where there is one.
        def_line: of the `def` or `class` keyword.
        block: identifies the suite that holds the definition; two definitions of one name in one
            suite follow each other, in two suites they may be alternatives.
        decorators: source text without the `@`.
        bases: source text of the positional bases of a class.
        class_keywords: names of the keywords of a class statement, such as `metaclass`.
        attributes: names assigned through `self` in the methods of a class; `*` where one is
            assigned by a computed name.
    """

    qualname: str
    kind: Literal["function", "class"]
    first_line: int
    def_line: int
    last_line: int
    block: int
    decorators: tuple[str, ...] = ()
    signature: Signature | None = None
    bases: tuple[str, ...] = ()
    class_keywords: tuple[str, ...] = ()
    fields: tuple[Field, ...] = ()
    attributes: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """The last part of the qualified name."""
        return self.qualname.rpartition(".")[2]

    @property
    def parent(self) -> str:
        """The qualified name of the scope that holds it, `<module>` at the top."""
        return self.qualname.rpartition(".")[0] or MODULE


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One imported name.

    Attributes:
        module: dotted, without the leading dots of a relative import.
        level: number of leading dots.
        name: `""` for `import module`, `"*"` for a star import.
        bound: the name it binds in its scope (`a` for `import a.b`), `""` for a star import.
        guard: `try` where a failing import is caught, `typing` under TYPE_CHECKING.
    """

    module: str
    level: int
    name: str
    bound: str
    line: int
    symbol: str
    guard: Literal["", "try", "typing"] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of a dotted name (also `super().name`); `positional` is source text."""

    callee: str
    positional: tuple[str, ...]
    keywords: tuple[str, ...]
    has_star_args: bool
    has_star_kwargs: bool
    line: int
    symbol: str


@dataclass(frozen=True, slots=True)
class Binding:
    """One place that binds a name: an import, a definition, or anything else.

    Attributes:
        alias: the dotted name on the right of a plain `name = dotted.name`.
    """

    kind: Literal["import", "definition", "value"]
    line: int
    source: Import | None = None
    alias: str = ""


@dataclass(frozen=True, kw_only=True)
class Module:
    """One parsed module.

    Attributes:
        bindings: scope to name to its bindings in the order of the source. Names of lambdas and
            comprehensions are counted to the function around them, so a lookup can only become
            less sure by them. Scopes that share a qualified name are merged.
        all_names: the value of `__all__`, None where it is absent or computed.
        is_dynamic: the module may hold names that its text doesn't bind (`__getattr__`,
            `globals()[...]`, `exec`).
        has_error: the parser had to skip text; what is said of the rest still holds.
    """

    symbols: tuple[Symbol, ...]
    bindings: Mapping[str, Mapping[str, tuple[Binding, ...]]]
    imports: tuple[Import, ...]
    calls: tuple[Call, ...]
    all_names: tuple[str, ...] | None
    is_dynamic: bool
    has_error: bool
    num_lines: int

    @cached_property
    def top_level(self) -> Mapping[str, tuple[Binding, ...]]:
        """What the module's own scope binds."""
        return self.bindings.get(MODULE, {})

    @cached_property
    def by_qualname(self) -> Mapping[str, tuple[Symbol, ...]]:
        """All definitions of each qualified name, in the order of the source."""
        found: dict[str, tuple[Symbol, ...]] = {}
        for symbol in self.symbols:
            found[symbol.qualname] = (*found.get(symbol.qualname, ()), symbol)
        return found

    @cached_property
    def _starts(self) -> list[int]:
        return [symbol.first_line for symbol in self.symbols]

    def symbol_at(self, line: int) -> str:
        """The innermost definition around a line, its decorators included, else `<module>`."""
        # Sorted by first line and nested, so the last one that starts at or before the line and
        # has not ended is the innermost.
        for symbol in reversed(self.symbols[: bisect_right(self._starts, line)]):
            if symbol.last_line >= line:
                return symbol.qualname
        return MODULE

    def spans_of(self, qualname: str) -> tuple[Span, ...]:
        """First and last line of every definition of a name; the whole file for `<module>`."""
        if qualname == MODULE:
            return ((1, self.num_lines),)
        return tuple((s.first_line, s.last_line) for s in self.by_qualname.get(qualname, ()))

    def span_of(self, qualname: str) -> Span | None:
        """First and last line of a definition.

        None where there is none, and also where there are several (a property and its setter,
        overloads, the arms of an if): a union would hold lines of neither. `spans_of` tells the
        two cases apart.
        """
        spans = self.spans_of(qualname)
        return spans[0] if len(spans) == 1 else None
