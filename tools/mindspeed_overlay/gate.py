"""The gate: what applies cleanly must also fit together.

Every module that the overlays changed or added is analysed in the patched tree, and so is every
untouched module that a change can reach. What the same module of the pristine tree has as well is
not the overlays' fault and is left out; a new module has no such excuse. Codes E601 to E607 are
explained in docs/error-codes.md.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from mindspeed_overlay.errors import Problem
from mindspeed_overlay.gate_calls import find_misfits, find_shifts
from mindspeed_overlay.gate_duplicates import find_duplicates
from mindspeed_overlay.gate_finding import Finding, subtract
from mindspeed_overlay.gate_imports import find_broken_imports
from mindspeed_overlay.gate_lint import lint_modules
from mindspeed_overlay.gate_reach import find_reached
from mindspeed_overlay.module_index import ModuleIndex, module_name
from mindspeed_overlay.resolve import Resolver
from mindspeed_overlay.syntax import MODULE, Module, parse_module
from mindspeed_overlay.tree import Files

_HINTS = {
    "E601": "write it for Python {python}, the oldest this release runs on",
    "E602": "the name is gone from this release, or the hunk landed in another scope",
    "E603": "this release has it already, or two overlays add it",
    "E604": "the name moved or is gone in this release, or an overlay in `requires` is missing",
    "E605": "this release has another signature, or the hunk landed in another function",
    "E606": "record the symbol it edits in the header, or move the edit",
    "E607": "the name moved or is gone in this release",
}
_QUOTED = re.compile(r"`(\w+)`")


@dataclass(frozen=True)
class _Side:
    """One state of the tree, and what the linter found in it."""

    files: Files
    lint: Mapping[str, Sequence[Finding]]

    @cached_property
    def index(self) -> ModuleIndex:
        return ModuleIndex(self.files)

    @cached_property
    def resolver(self) -> Resolver:
        return Resolver(self.index)

    def find(self, path: str, *, allow_soft: bool) -> list[Finding]:
        """All findings of one module."""
        linted = [f for f in self.lint.get(path, ()) if not self._is_bound(path, f)]
        lines = {(f.code, f.line) for f in linted}
        data = self.files[path]
        own = [f for f in find_duplicates(data) if (f.code, f.line) not in lines]
        imports = find_broken_imports(self.index, path, allow_soft=allow_soft)
        return [*linted, *own, *imports, *find_misfits(self.resolver, path)]

    def _is_bound(self, path: str, finding: Finding) -> bool:
        """Names the linter can't see: by star import or `__getattr__`, submodules in `__all__`."""
        name = _QUOTED.search(finding.message)
        if finding.code != "E602" or name is None:
            return False
        module = module_name(path)
        if "__all__" in finding.message:
            return self.index.binds(module, name[1])
        return bool(self.index.star_sources(module)) and self.index.binds(module, name[1])


def check_gate(
    before: Files,
    after: Files,
    *,
    python: str,
    touched: Mapping[str, tuple[str, ...]],
) -> list[Problem]:
    """What is wrong in the patched tree and was not in the pristine one.

    Args:
        before: the pristine tree.
        after: the same tree with the overlays applied.
        python: the oldest Python of the release, such as `3.10`; its syntax counts.
        touched: for each path that overlays changed or added, their ids in the order of the
            series. Modules that differ without being named here are checked all the same.

    Returns:
        Problems E601 to E605 and E607, by path and line; empty when all is well.

    Raises:
        MissingError: ruff can't be run.
    """
    paths = {*before, *after, *touched}
    changed = [p for p in sorted(paths) if p.endswith(".py") and before.get(p) != after.get(p)]
    reached = find_reached(ModuleIndex(before), ModuleIndex(after), changed)
    old, new = _lint_both(before, after, [*changed, *reached], python=python)
    problems = []
    for path in [*changed, *reached]:
        if path not in after:
            continue
        found = new.find(path, allow_soft=path not in before)
        if path in before:
            # Most modules have no finding, and then the pristine one needs no look.
            found = subtract(found, old.find(path, allow_soft=False)) if found else []
            found += find_shifts(old.resolver, new.resolver, path)
        causes = reached.get(path, frozenset({path}))
        ids = dict.fromkeys(i for cause in sorted(causes) for i in touched.get(cause, ()))
        problems += [_to_problem(f, path, ids, python=python) for f in found]
    return sorted(problems, key=lambda p: (p.path, p.line, p.code))


def _lint_both(
    before: Files, after: Files, paths: Sequence[str], *, python: str
) -> tuple[_Side, _Side]:
    places = [(files, p) for files in (before, after) for p in paths if p in files]
    results = lint_modules([files[p] for files, p in places], python=python)
    linted = [
        {p: r for (files, p), r in zip(places, results, strict=True) if files is side}
        for side in (before, after)
    ]
    return _Side(before, linted[0]), _Side(after, linted[1])


def _to_problem(finding: Finding, path: str, ids: Iterable[str], *, python: str) -> Problem:
    overlays = list(ids)
    features = "".join(f" --feature {i}" for i in overlays)
    reason = _HINTS[finding.code].format(python=python)
    return Problem(
        code=finding.code,
        message=f"{path}:{finding.line} (in {finding.symbol}): {finding.message}",
        overlay=", ".join(overlays),
        path=path,
        line=finding.line,
        symbol=finding.symbol,
        hint=f"{reason}; look at it with `mindspeed-overlay apply DIR{features}`",
    )


def check_hunk_symbols(data: bytes, hunks: Iterable[tuple[int, int, str]]) -> list[Problem]:
    """The hunks that lie outside the symbol recorded for them.

    Args:
        data: the module the line numbers count in: the pristine one for old lines, the patched one
            for new lines.
        hunks: first line, last line and symbol of each hunk, from 1. Only changed lines, no
            context. An insertion has no old lines: (n + 1, n, symbol) says after line n. `<module>`
            means outside every definition; a class holds its methods.

    Returns:
        Problems E606 with `hunk` set; the caller knows overlay, patch and path.
    """
    module, lines = parse_module(data), data.split(b"\n")
    problems = []
    for number, (first, last, symbol) in enumerate(hunks, start=1):
        places = range(first, last + 1)
        if last < first:
            inside = any(_holds(module, symbol, line) for line in (last, first))
        else:
            inside = all(_holds(module, symbol, n) for n in places if lines[n - 1].strip())
        if not inside:
            actual = module.symbol_at(first)
            problems.append(_hunk_problem(number, first, symbol, actual))
    return problems


def _holds(module: Module, symbol: str, line: int) -> bool:
    if symbol == MODULE:
        return module.symbol_at(line) == MODULE
    return any(first <= line <= last for first, last in module.spans_of(symbol))


def _hunk_problem(number: int, line: int, symbol: str, actual: str) -> Problem:
    return Problem(
        code="E606",
        message=f"hunk {number} edits line {line} in {actual}, recorded for {symbol}",
        hunk=number,
        line=line,
        symbol=symbol,
        hint=f"{_HINTS['E606']}; then run `mindspeed-overlay check`",
    )
