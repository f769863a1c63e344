"""Upstream code copied into an overlay's files, found by shared runs of tokens.

A function counts as copied when most of its runs of eight tokens stand in one upstream function.
Names count; comments, docstrings and layout don't. So renaming a few variables hides nothing, and
two functions that merely call the same things are not alike.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from mindspeed_overlay.errors import Problem
from mindspeed_overlay.module_index import module_name
from mindspeed_overlay.syntax import parse_module
from mindspeed_overlay.tree import Files

RUN = 8
MIN_TOKENS = 60
"""Shorter functions are alike by chance."""
ALIKE = 0.6
"""The share of runs that makes a copy."""

_TOKEN = re.compile(rb"[A-Za-z_]\w*|\d[\w.]*|[^\s\w]")
_NAME = re.compile(rb"[A-Za-z_]\w{3,}")
_NOISE = re.compile(rb'("""|\'\'\')(?:.|\n)*?\1|#[^\n]*')

Runs = frozenset[tuple[bytes, ...]]


@dataclass(frozen=True)
class Copy:
    """One function of an overlay that is upstream's."""

    path: str
    line: int
    symbol: str
    upstream: str
    share: float


def read_runs(source: bytes) -> Runs:
    """All runs of tokens in some source."""
    tokens = _TOKEN.findall(_NOISE.sub(b"", source))
    return frozenset(tuple(tokens[k : k + RUN]) for k in range(len(tokens) - RUN + 1))


@dataclass(frozen=True, eq=False)
class CopyFinder:
    """Looks for copies from the files of one release."""

    pristine: Files

    @cached_property
    def _names(self) -> dict[str, frozenset[bytes]]:
        return {
            path: frozenset(_NAME.findall(data))
            for path, data in self.pristine.items()
            if path.endswith(".py")
        }

    def find(self, files: Mapping[str, bytes]) -> Iterator[Copy]:
        """Every function of `files` of which an upstream function holds the most."""
        for path, data in files.items():
            if not path.endswith(".py"):
                continue
            for line, symbol, source in _read_functions(data):
                runs = read_runs(source)
                if len(runs) >= MIN_TOKENS - RUN + 1:
                    upstream, share = self._find_closest(runs, frozenset(_NAME.findall(source)))
                    if share >= ALIKE:
                        yield Copy(path, line, symbol, upstream, share)

    def _find_closest(self, runs: Runs, names: frozenset[bytes]) -> tuple[str, float]:
        best = ("", 0.0)
        for path, known in self._names.items():
            # Most files lack most of the names, and then can't hold most of the runs.
            if len(names & known) < ALIKE * len(names):
                continue
            if len(runs & read_runs(self.pristine[path])) < ALIKE * len(runs):
                continue
            for _, symbol, source in _read_functions(self.pristine[path]):
                share = len(runs & read_runs(source)) / len(runs)
                if share > best[1]:
                    best = (f"{module_name(path)}:{symbol}", share)
        return best


def _read_functions(data: bytes) -> Iterator[tuple[int, str, bytes]]:
    lines = data.splitlines(keepends=True)
    for symbol in parse_module(data).symbols:
        if symbol.kind == "function":
            source = b"".join(lines[symbol.def_line - 1 : symbol.last_line])
            yield symbol.def_line, symbol.qualname, source


def lint_copies(finder: CopyFinder, files: Mapping[str, bytes], *, overlay: str) -> list[Problem]:
    """E434 for each copied function."""
    return [
        Problem(
            code="E434",
            overlay=overlay,
            path=copy.path,
            line=copy.line,
            symbol=copy.symbol,
            message=(
                f"{copy.path}:{copy.line}: {copy.share:.0%} of {copy.symbol} is upstream's "
                f"{copy.upstream}"
            ),
            hint="call it, or hook into the middle of it with a patch: a copy goes stale silently",
        )
        for copy in finder.find(files)
    ]
