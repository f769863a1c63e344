"""Operator schemas and public names of torch_npu releases, as read out of their wheels.

The lists in `data/` are made by `read_wheel` and hold, for each release, the schema of every
operator and the names that its Python modules define. Nothing here imports torch.
"""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import Version

DATA = Path(__file__).parent / "data"

_HEAD = re.compile(r"(?:(?P<namespace>\w+)::)?(?P<name>\w+)(?:\.(?P<overload>\w+))?\(")
_OPENING, _CLOSING = "([{", ")]}"


@dataclass(frozen=True)
class Argument:
    """One parameter of an operator."""

    name: str
    type: str
    default: str | None = None
    kwarg_only: bool = False

    @property
    def optional(self) -> bool:
        """Whether None may be given."""
        return self.type.endswith("?")


@dataclass(frozen=True)
class Schema:
    """One operator overload: its parameters in order and the types that it returns."""

    namespace: str
    name: str
    overload: str
    arguments: tuple[Argument, ...]
    returns: tuple[str, ...]

    @property
    def key(self) -> str:
        """`name` or `name.overload`, as the kernel registry spells it."""
        return f"{self.name}.{self.overload}" if self.overload else self.name

    @property
    def positional(self) -> tuple[Argument, ...]:
        """The arguments that may be given by position."""
        return tuple(a for a in self.arguments if not a.kwarg_only)


@dataclass(frozen=True)
class Release:
    """What one release of torch_npu offers.

    Attributes:
        version: the release, as PyPI has it.
        schemas: `npu::` operator name, without overload, to its overloads.
        unsigned: `npu::` operators that exist but have no schema text in the wheel.
        modules: the public Python modules, `torch_npu.npu`.
        names: dotted names that they hold, `torch_npu.npu.set_device`.
    """

    version: str
    schemas: dict[str, tuple[Schema, ...]]
    unsigned: frozenset[str]
    modules: frozenset[str]
    names: frozenset[str]


def parse_schema(text: str, *, namespace: str = "npu") -> Schema:
    """Read one schema as torch prints it: `npu::f.out(Tensor x, *, int k=1) -> (Tensor, Tensor)`.

    Args:
        text: the schema.
        namespace: taken where the text names none.

    Raises:
        ValueError: `text` is no schema.
    """
    head = _HEAD.match(text)
    end = _closing(text, head.end() - 1) if head else -1
    arrow = text[end + 1 :].strip()
    if head is None or end < 0 or not arrow.startswith("->"):
        raise ValueError(f"not an operator schema: {text!r}")
    arguments, kwarg_only = [], False
    for part in _split(text[head.end() : end]):
        if part == "*":
            kwarg_only = True
        else:
            arguments.append(_argument(part, kwarg_only=kwarg_only))
    returns = arrow[2:].strip()
    if returns.startswith("("):
        returns = returns[1:-1]
    return Schema(
        head["namespace"] or namespace,
        head["name"],
        head["overload"] or "",
        tuple(arguments),
        tuple(_split(returns)),
    )


def versions(specifier: str = "") -> list[str]:
    """The listed releases that satisfy `specifier` (`>=2.7.1`), oldest first."""
    found = sorted((path.stem.removeprefix("torch_npu-") for path in DATA.iterdir()), key=Version)
    return list(SpecifierSet(specifier).filter(found))


@cache
def release(version: str) -> Release:
    """Load the list of one release.

    Raises:
        ValueError: there is no list for it.
    """
    path = DATA / f"torch_npu-{version}.txt"
    if not path.is_file():
        raise ValueError(f"no schema list for torch_npu {version}; there are {versions()}")
    schemas: dict[str, tuple[Schema, ...]] = {}
    unsigned: set[str] = set()
    modules: set[str] = set()
    names: set[str] = set()
    for line in path.read_text().splitlines():
        kind, _, rest = line.partition(" ")
        if kind == "op":
            schema = parse_schema(rest)
            if schema.namespace == "npu":
                schemas[schema.name] = (*schemas.get(schema.name, ()), schema)
        elif kind == "unsigned":
            unsigned.add(rest.removeprefix("npu::"))
        elif kind == "names":
            module, *attributes = rest.split()
            modules.add(module)
            names.update(f"{module}.{attribute}" for attribute in attributes)
    return Release(version, schemas, frozenset(unsigned), frozenset(modules), frozenset(names))


def _argument(text: str, *, kwarg_only: bool) -> Argument:
    declared, equals, default = text.partition("=")
    kind, _, name = declared.strip().rpartition(" ")
    return Argument(name, kind, default.strip() if equals else None, kwarg_only)


def _closing(text: str, start: int) -> int:
    """The index of the bracket that closes the one at `start`, or -1."""
    depth, quote = 0, ""
    for index in range(start, len(text)):
        char = text[index]
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        elif char in _OPENING:
            depth += 1
        elif char in _CLOSING:
            depth -= 1
            if depth == 0:
                return index
    return -1


def _split(text: str) -> list[str]:
    """Split at commas that stand in no bracket and no string."""
    parts, depth, quote, start = [], 0, "", 0
    for index, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        elif char in _OPENING:
            depth += 1
        elif char in _CLOSING:
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[start:index].strip())
            start = index + 1
    return [part for part in [*parts, text[start:].strip()] if part]
