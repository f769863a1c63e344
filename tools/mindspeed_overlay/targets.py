"""From a plan to wheels on disk: many targets in one run, patched and checked once."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from mindspeed_overlay.build import gate_files, patch_files
from mindspeed_overlay.cluster.matrix import Target
from mindspeed_overlay.errors import PackagingError, Problem, VerifyError
from mindspeed_overlay.finished import FinishedBuilds
from mindspeed_overlay.lock import (
    LOCK_NAME,
    Lock,
    LockedWheel,
    find_differences,
    hash_build_json,
    make_lock,
)
from mindspeed_overlay.pins import Wheel
from mindspeed_overlay.plan import Plan
from mindspeed_overlay.provenance import trace_lines
from mindspeed_overlay.staging import write_if_changed
from mindspeed_overlay.tree import sha256
from mindspeed_overlay.wheelname import wheel_name

Report = Callable[[str], None]
"""Takes a sentence on what is being done now."""
_PARALLEL = 4


@dataclass(frozen=True)
class Built:
    """A finished wheel."""

    path: Path
    digest: str
    sha256: str
    reused: bool
    notes: tuple[str, ...]
    target: tuple[str, str]


@dataclass(frozen=True)
class Request:
    """How the wheels are to be made.

    Attributes:
        spec: the source, as `open_source` takes it.
        offline: use only what the cache holds.
        rebuild: make finished wheels anew.
        progress: show bars, where standard error is a terminal.
        report: takes sentences on what is being done.
    """

    spec: str = "pypi"
    offline: bool = False
    rebuild: bool = False
    progress: bool = False
    report: Report = lambda _: None

    @property
    def kind(self) -> str:
        """pypi, git or dir."""
        return self.spec.partition(":")[0]


@dataclass(frozen=True)
class _Made:
    """A wheel in memory."""

    data: bytes
    digest: str
    tags: tuple[str, ...]
    reused: bool
    notes: tuple[str, ...] = ()


def build_wheels(
    plan: Plan,
    targets: tuple[Target, ...],
    *,
    out: Path,
    request: Request,
    locked: Lock | None = None,
) -> tuple[tuple[Built, ...], Lock]:
    """Build the wheels of a plan into `out`, with their lock; finished ones are used again.

    Args:
        plan: what to build.
        targets: what to build it for.
        out: the folder.
        request: how.
        locked: the lock that the result must agree with, byte for byte.

    Raises:
        OverlayError: any of its kinds; VerifyError E911 and E912 where `locked` is not met. Nothing
            in `out` has changed then.
    """
    from mindspeed_overlay.source.pypi import choose_wheel

    release = plan.release
    if locked:
        _compare_inputs(plan, locked, request.kind)
    chosen = {t: choose_wheel(release, python=t.python, platform=t.platform) for t in targets}
    made = _find_finished(plan, chosen, request)
    if missing := {t: wheel for t, wheel in chosen.items() if t not in made}:
        made |= _make_missing(plan, missing, request)
    wheels = tuple(_lock_wheel(plan, t, chosen[t], made[t]) for t in targets)
    unique = tuple({entry.wheel: entry for entry in wheels}.values())
    lock = make_lock(plan, unique, digest=made[targets[0]].digest, source=request.kind)
    if locked:
        _compare_results(locked, lock)
        lock = locked
    contents = {entry.wheel: made[t].data for t, entry in zip(targets, wheels, strict=True)}
    _deliver(out, {**contents, LOCK_NAME: lock.to_bytes()})
    built = [
        Built(
            out / entry.wheel,
            made[t].digest,
            entry.wheel_sha256,
            made[t].reused,
            made[t].notes,
            (entry.python, entry.platform),
        )
        for t, entry in zip(targets, wheels, strict=True)
    ]
    return tuple(built), lock


def _find_finished(
    plan: Plan, chosen: Mapping[Target, Wheel | None], request: Request
) -> dict[Target, _Made]:
    from mindspeed_overlay.source.cache import find_cache_dir

    finished = FinishedBuilds(find_cache_dir())
    found: dict[Target, _Made] = {}
    # What a folder holds is known only after reading it; every other source is known by its pin.
    if request.rebuild or request.kind not in ("pypi", "git"):
        return found
    digest = plan.build_digest(plan.release.digest_for(request.kind))
    for target, wheel in chosen.items():
        if wheel and (data := finished.get(_finished_key(digest, wheel.sha256, wheel.tags))):
            found[target] = _Made(data, digest, wheel.tags, reused=True)
    return found


def _make_missing(
    plan: Plan, missing: Mapping[Target, Wheel | None], request: Request
) -> dict[Target, _Made]:
    """Fetch in parallel, patch and check once, write in parallel."""
    from mindspeed_overlay.source import Source, open_source
    from mindspeed_overlay.source.cache import find_cache_dir
    from mindspeed_overlay.source.wheelfile import is_helpers
    from mindspeed_overlay.wheel import write_wheel

    def fetch(target: Target) -> Source:
        return open_source(
            plan.release,
            spec=request.spec,
            tree=plan.tree,
            python=target.python,
            platform=target.platform,
            offline=request.offline,
            progress=request.progress and len(missing) == 1,
        )

    request.report(f"getting {plan.release.tag} for {len(missing)} targets")
    with ThreadPoolExecutor(_PARALLEL) as pool:
        # The first one alone: it brings what all share, a clone among it.
        targets = list(missing)
        sources = [fetch(targets[0]), *pool.map(fetch, targets[1:])]
        first = sources[0]
        request.report(f"applying {len(plan.patches)} patches of {len(plan.overlays)} overlays")
        patched = patch_files(plan, first.files)
        request.report("checking the result")
        gate_files(plan, first.files, patched)
        lines = trace_lines(patched.landings)
        common = {p: data for p, data in patched.files.items() if not is_helpers(p)}
        finished = FinishedBuilds(find_cache_dir())

        def write(target: Target, source: Source) -> _Made:
            natives = {p: data for p, data in source.files.items() if is_helpers(p)}
            files = {**common, **natives}
            data = write_wheel(plan, source, files, touched=patched.touched, lines=lines)
            digest = plan.build_digest(source.digest)
            if wheel := missing[target]:
                finished.put(_finished_key(digest, wheel.sha256, source.tags), data)
            return _Made(data, digest, source.tags, reused=False, notes=source.notes)

        _require_one_source([source.digest for source in sources])
        request.report("writing the wheels")
        return dict(zip(targets, pool.map(write, targets, sources), strict=True))


def _require_one_source(digests: list[str]) -> None:
    """Targets share the patched files, so their sources must be one."""
    if len(set(digests)) > 1:
        message = f"the official wheels of the targets hold different sources: {sorted(digests)}"
        raise PackagingError(Problem(code="E705", message=message, hint="build them one by one"))


def _finished_key(digest: str, wheel_sha256: str, tags: tuple[str, ...]) -> str:
    return sha256("\n".join([digest, wheel_sha256, *tags]).encode())


def _lock_wheel(plan: Plan, target: Target, wheel: Wheel | None, made: _Made) -> LockedWheel:
    python, platform = target.name(wheel)
    upstream = wheel or plan.release.wheels[0]
    return LockedWheel(
        wheel=wheel_name(plan, made.digest, made.tags),
        wheel_sha256=sha256(made.data),
        build_json_sha256=hash_build_json(made.data),
        python=python,
        platform=platform,
        upstream=upstream.filename,
        upstream_sha256=upstream.sha256,
    )


def _compare_inputs(plan: Plan, locked: Lock, kind: str) -> None:
    """Before anything is fetched: is all that decides the bytes what the lock says?"""
    digest = plan.build_digest(plan.release.digest_for("git" if kind == "git" else "pypi"))
    here = make_lock(plan, (), digest=locked.digest if kind == "dir" else digest, source=kind)
    pinned = {wheel.sha256 for wheel in plan.release.wheels}
    problems = find_differences(locked, here)
    problems += [
        Problem(code="E911", message=f"{entry.upstream} of the lock is not pinned with its hash")
        for entry in locked.wheels
        if entry.upstream_sha256 not in pinned
    ]
    if problems:
        raise VerifyError(*problems)


def _compare_results(locked: Lock, made: Lock) -> None:
    problems = []
    for entry in made.wheels:
        wanted = locked.get(entry.wheel)
        if wanted is None:
            message = f"{entry.wheel} was built, and the lock has no such wheel"
            problems.append(Problem(code="E912", path=entry.wheel, message=message))
        elif wanted != entry:
            names = [n for n in vars(wanted) if getattr(wanted, n) != getattr(entry, n)]
            told = "; ".join(f"{n} {getattr(entry, n)}, locked {getattr(wanted, n)}" for n in names)
            message = f"{entry.wheel} came out otherwise from the same inputs: {told}"
            hint = "the lock was edited, or this is a fault of the tool: report it with the lock"
            problems.append(Problem(code="E912", path=entry.wheel, message=message, hint=hint))
    if problems:
        raise VerifyError(*problems)


def _deliver(out: Path, contents: Mapping[str, bytes]) -> None:
    """Write the wheels, then the lock; what is there already stays untouched."""
    target = out
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, data in contents.items():
            target = out / name
            write_if_changed(target, data)
    except OSError as error:
        hint = "give another folder with --out"
        problem = Problem(
            code="E703", message=f"cannot write {target}: {error.strerror}", hint=hint
        )
        raise PackagingError(problem) from error
