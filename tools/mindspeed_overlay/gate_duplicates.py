"""Definitions that a later one in the same suite replaces.

The linter reports a redefinition only where the first one was never used; a merge that leaves a
method twice is a fault even when something between the two calls it. Fields of a class are not
definitions to the linter at all.
"""

from collections.abc import Iterator
from itertools import pairwise

from mindspeed_overlay.gate_finding import Finding
from mindspeed_overlay.syntax import Symbol, parse_module


def find_duplicates(data: bytes) -> Iterator[Finding]:
    """Functions, classes and annotated class fields that are defined twice in one suite."""
    module = parse_module(data)
    for qualname, symbols in module.by_qualname.items():
        for first, second in pairwise(symbols):
            if first.block == second.block and not _is_variant(first, second):
                message = f"{qualname} is defined again, first on line {first.def_line}"
                yield Finding("E603", message, qualname, second.def_line, second.parent)
    for symbol in module.symbols:
        names = [field.name for field in symbol.fields]
        for position, field in enumerate(symbol.fields):
            if field.name in names[:position]:
                about = f"{symbol.qualname}.{field.name}"
                message = f"{about} is declared again"
                yield Finding("E603", message, about, field.line, symbol.qualname)


def _is_variant(first: Symbol, second: Symbol) -> bool:
    """Whether both are meant: overloads, a property's setter, a registered implementation."""
    if first.name == "_":
        return True
    parts = {part for d in second.decorators for part in d.partition("(")[0].split(".")}
    return second.name in parts or any(
        d.rpartition(".")[2] in ("overload", "type_check_only") for d in first.decorators
    )
