"""From a plan to patched files, and whether they are sound."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mindspeed_overlay.apply import Landing, check_symbols, land_patches
from mindspeed_overlay.errors import ApplyError, DefinitionError, GateError, Problem
from mindspeed_overlay.patch import Patch, parse_patch
from mindspeed_overlay.plan import Plan


@dataclass(frozen=True)
class Patched:
    """A release with its overlays applied, in memory."""

    files: Mapping[str, bytes]
    touched: Mapping[str, tuple[str, ...]]
    """Every changed or added path to the overlays that did it, in order."""
    landings: tuple[Landing, ...]


def patch_files(plan: Plan, pristine: Mapping[str, bytes]) -> Patched:
    """Apply a plan to a pristine tree.

    Raises:
        ApplyError: every hunk of the run that does not fit.
        DefinitionError: E414, a new file stands where upstream has one.
    """
    clashes = [
        Problem(code="E414", overlay=owner, path=path, message=f"brings {path}, which upstream has")
        for owner, path, _ in plan.files
        if path in pristine
    ]
    if clashes:
        raise DefinitionError(*clashes)
    landings = land_patches(pristine, parse_plan(plan), release=plan.release.tag)
    files = dict(pristine)
    touched: dict[str, tuple[str, ...]] = {}
    for landing in landings:
        target = landing.patch.target
        files[target] = landing.applied.data
        touched[target] = (*touched.get(target, ()), landing.overlay)
    files |= {path: data for _, path, data in plan.files}
    touched |= {path: (owner,) for owner, path, _ in plan.files}
    return Patched(files, touched, tuple(landings))


def parse_plan(plan: Plan) -> list[tuple[str, Patch]]:
    """The plan's patches, parsed.

    Raises:
        ApplyError: E51x, every patch that cannot be read.
    """
    patches, problems = [], []
    for planned in plan.patches:
        try:
            patches.append((planned.overlay, parse_patch(planned.data, name=planned.name)))
        except ApplyError as error:
            problems += [replace(p, overlay=planned.overlay) for p in error.problems]
    if problems:
        raise ApplyError(*problems)
    return patches


def gate_files(plan: Plan, pristine: Mapping[str, bytes], patched: Patched) -> None:
    """Refuse a result that applies cleanly and is still wrong.

    Raises:
        GateError: every finding that the pristine tree lacks.
    """
    from mindspeed_overlay.gate import check_gate
    from mindspeed_overlay.syntax import parse_module

    floor = plan.release.python.removeprefix(">=")
    problems = check_gate(pristine, patched.files, python=floor, touched=patched.touched)
    for landing in patched.landings:
        symbol_at = parse_module(landing.before).symbol_at
        problems += check_symbols(landing, symbol_at=symbol_at)
    if problems:
        raise GateError(*problems)
