"""From a plan to files, and from files to a wheel on disk."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from mindspeed_overlay.apply import Landing, check_symbols, land_patches
from mindspeed_overlay.errors import (
    ApplyError,
    DefinitionError,
    GateError,
    PackagingError,
    Problem,
)
from mindspeed_overlay.finished import FinishedBuilds
from mindspeed_overlay.lock import LOCK_NAME, make_lock
from mindspeed_overlay.patch import Patch, parse_patch
from mindspeed_overlay.plan import Plan
from mindspeed_overlay.provenance import trace_lines
from mindspeed_overlay.staging import clean_leftovers, write_atomically
from mindspeed_overlay.tree import sha256
from mindspeed_overlay.wheelname import wheel_name

Report = Callable[[str], None]
"""Takes a sentence on what is being done now."""


@dataclass(frozen=True)
class Patched:
    """A release with its overlays applied, in memory."""

    files: Mapping[str, bytes]
    touched: Mapping[str, tuple[str, ...]]
    """Every changed or added path to the overlays that did it, in order."""
    landings: tuple[Landing, ...]


@dataclass(frozen=True)
class Built:
    """A finished wheel."""

    path: Path
    digest: str
    sha256: str
    reused: bool
    notes: tuple[str, ...]


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


def build_wheel(
    plan: Plan,
    *,
    out: Path,
    spec: str = "pypi",
    python: str | None = None,
    platform: str | None = None,
    offline: bool = False,
    rebuild: bool = False,
    progress: bool = False,
    report: Report = lambda _: None,
) -> Built:
    """Build the wheel of a plan into `out`; a wheel finished before is used again.

    Raises:
        OverlayError: any of its kinds. Nothing in `out` has changed then.
    """
    from mindspeed_overlay.source.cache import find_cache_dir
    from mindspeed_overlay.source.pypi import choose_wheel

    finished = FinishedBuilds(find_cache_dir())
    kind = spec.partition(":")[0]
    wheel = choose_wheel(plan.release, python=python, platform=platform)
    # What a folder holds is known only after reading it; every other source is known by its pin.
    if wheel and not rebuild and kind in ("pypi", "git"):
        digest = plan.build_digest(plan.release.digest_for(kind))
        if data := finished.get(_finished_key(digest, wheel.sha256, wheel.tags)):
            return _deliver(data, out, plan, digest, wheel.tags, reused=True, notes=())
    report(f"getting {plan.release.tag}")
    from mindspeed_overlay.source import open_source

    source = open_source(
        plan.release,
        spec=spec,
        tree=plan.tree,
        python=python,
        platform=platform,
        offline=offline,
        progress=progress,
    )
    from mindspeed_overlay.wheel import write_wheel

    report(f"applying {len(plan.patches)} patches of {len(plan.overlays)} overlays")
    patched = patch_files(plan, source.files)
    report("checking the result")
    gate_files(plan, source.files, patched)
    report("writing the wheel")
    lines = trace_lines(patched.landings)
    data = write_wheel(plan, source, patched.files, touched=patched.touched, lines=lines)
    digest = plan.build_digest(source.digest)
    if wheel:
        finished.put(_finished_key(digest, wheel.sha256, source.tags), data)
    return _deliver(data, out, plan, digest, source.tags, reused=False, notes=source.notes)


def _finished_key(digest: str, wheel_sha256: str, tags: tuple[str, ...]) -> str:
    return sha256("\n".join([digest, wheel_sha256, *tags]).encode())


def _deliver(
    data: bytes,
    out: Path,
    plan: Plan,
    digest: str,
    tags: tuple[str, ...],
    *,
    reused: bool,
    notes: tuple[str, ...],
) -> Built:
    path = out / wheel_name(plan, digest, tags)
    checksum = sha256(data)
    lock = make_lock(path.name, data, digest)
    try:
        out.mkdir(parents=True, exist_ok=True)
        for target, content in ((path, data), (out / LOCK_NAME, lock.to_bytes())):
            clean_leftovers(target)
            if not (target.is_file() and target.read_bytes() == content):
                write_atomically(target, content)
    except OSError as error:
        hint = "give another folder with --out"
        problem = Problem(code="E703", message=f"cannot write {path}: {error.strerror}", hint=hint)
        raise PackagingError(problem) from error
    return Built(path, digest, checksum, reused, notes)
