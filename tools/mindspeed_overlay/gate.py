"""The gate: what applies cleanly must also fit together.

Every module that the overlays changed or added is analysed in the patched tree, and so is every
untouched module that a change can reach. What the same module of the pristine tree has as well is
not the overlays' fault and is left out; a new module has no such excuse. The codes are explained
in docs/error-codes.md; hunks that land outside their symbol are found on apply (E507).
"""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from mindspeed_overlay.errors import Problem
from mindspeed_overlay.gate_calls import find_shifts
from mindspeed_overlay.gate_finding import Finding, subtract
from mindspeed_overlay.gate_lint import read_findings, run_linter
from mindspeed_overlay.gate_reach import Reach, find_reach
from mindspeed_overlay.gate_side import Side
from mindspeed_overlay.tree import Files

_HINTS = {
    "E601": "write it for Python {python}, the oldest this release runs on",
    "E602": "the name is gone from this release, or the hunk landed in another scope",
    "E603": "this release has it already, or two overlays add it",
    "E604": "the name moved or is gone in this release, or an overlay in `requires` is missing",
    "E605": "this release has another signature, or the hunk landed in another function",
    "E606": "the name moved or is gone in this release",
}


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
        Problems E601 to E606, by path and line; empty when all is well.

    Raises:
        MissingError: ruff can't be run.
    """
    old, new = Side(before), Side(after)
    paths = {*before, *after, *touched}
    changed = [p for p in sorted(paths) if p.endswith(".py") and before.get(p) != after.get(p)]
    with ThreadPoolExecutor(max_workers=1) as pool:
        # The linter works while the trees are compared; reached modules are rare.
        sources = _sources(old, new, changed)
        entries = pool.submit(run_linter, [*sources.values()], python=python)
        reach = find_reach(old.index, new.index, changed)
        _share(read_findings(entries.result(), [*sources.values()]), sources)
    others = _sources(old, new, [*reach.modules])
    _share(read_findings(run_linter([*others.values()], python=python), [*others.values()]), others)
    problems = [
        _to_problem(finding, path, reach.blame(path, touched), python=python)
        for path in [*changed, *reach.modules]
        if path in after
        for finding in _find_new(old, new, path, reach)
    ]
    return sorted(problems, key=lambda p: (p.path, p.line, p.code))


def _sources(old: Side, new: Side, paths: Sequence[str]) -> dict[tuple[Side, str], bytes]:
    sides = (old, new)
    return {(side, p): side.files[p] for side in sides for p in paths if p in side.files}


def _share(found: list[list[Finding]], sources: dict[tuple[Side, str], bytes]) -> None:
    for (side, path), findings in zip(sources, found, strict=True):
        side.linted[path] = findings


def _find_new(old: Side, new: Side, path: str, reach: Reach) -> list[Finding]:
    found = new.find(path, allow_soft=path not in old.files)
    if path not in old.files:
        return found
    # Most modules have no finding, and then the pristine one needs no look.
    found = subtract(found, old.find(path, allow_soft=False)) if found else []
    shifted = find_shifts(old.resolver, new.resolver, path) if reach.mentions(path) else ()
    return [*found, *shifted]


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
