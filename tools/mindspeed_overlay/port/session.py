"""`port` from the command line: begin, stop at conflicts, go on, give up."""

import datetime
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mindspeed_overlay.errors import DefinitionError, Problem, UsageError
from mindspeed_overlay.port.accept import clean_set, write_ported
from mindspeed_overlay.port.conflicts import lay_out, read_back
from mindspeed_overlay.port.engine import Job, Ported, run_port
from mindspeed_overlay.port.sources import open_job
from mindspeed_overlay.port.state import Decision, Request, State, Store, decide
from mindspeed_overlay.port.threads import OverlayResult
from mindspeed_overlay.tree import sha256

if TYPE_CHECKING:
    from mindspeed_overlay.cli import Workspace

__all__ = ["Outcome", "Request", "abort_port", "continue_port", "start_port"]


@dataclass(frozen=True)
class Outcome:
    """How a command ended: what was carried, what was written, what to do next."""

    ported: Ported
    written: tuple[Path, ...] = ()
    advice: tuple[str, ...] = ()
    exit_code: int = 0


def start_port(
    workspace: "Workspace", request: Request, work: Path, *, dry_run: bool = False
) -> Outcome:
    """Begin a port.

    Raises:
        UsageError: E220 no release to carry to, E223 another port is unfinished.
        OverlayError: as `run_port`.
    """
    if not request.last:
        hint = "name the release to carry to: --to core_v0.19.0"
        raise UsageError(Problem(code="E220", message="port needs --to TAG", hint=hint))
    store = Store(work)
    if store.exists and not dry_run:
        message = f"another port is unfinished in {store.folder}"
        hint = "`mindspeed-overlay port --continue`, or `--abort` to give it up"
        raise UsageError(Problem(code="E223", message=message, hint=hint))
    clean_set(workspace.overlays_folder)
    job = open_job(workspace, request)
    state = State(request=request, today=_today(), inputs=digest_inputs(job))
    if not dry_run:
        store.save(state)
    return _run(workspace, job, state, None if dry_run else store)


def continue_port(workspace: "Workspace", work: Path, *, skip: tuple[str, ...] = ()) -> Outcome:
    """Go on with an unfinished port: take what a person decided, and carry again.

    Raises:
        UsageError: E222, there is none.
        DefinitionError: E534, the overlays' patches were changed since it began.
    """
    store = Store(work)
    state = store.load()
    request = replace(state.request, skip=tuple(dict.fromkeys((*state.request.skip, *skip))))
    state = replace(state, request=request)
    clean_set(workspace.overlays_folder)
    job = open_job(workspace, request)
    if digest_inputs(job) != state.inputs:
        message = "the overlay set was changed since this port began"
        hint = "`mindspeed-overlay port --abort`, then begin anew"
        raise DefinitionError(Problem(code="E534", message=message, hint=hint))
    state = _take_decisions(store, state)
    store.save(state)
    return _run(workspace, job, state, store)


def abort_port(work: Path) -> None:
    """Give an unfinished port up.

    Raises:
        UsageError: E222, there is none.
    """
    store = Store(work)
    if not store.folder.is_dir():
        store.load()
    store.remove()


def digest_inputs(job: Job) -> str:
    """A digest of the diffs that a job starts from: of all older releases, without headers."""
    older = job.order[: job.order.index(job.new.tag)]
    lines = [
        f"{overlay.id} {tag} {name} {sha256(data[data.find(b'--- ') :])}"
        for overlay in job.overlays.overlays
        for tag in older
        for name, data in sorted(overlay.patch_sets.get(tag, {}).items())
    ]
    return sha256("\n".join(lines).encode())


def _run(workspace: "Workspace", job: Job, state: State, store: Store | None) -> Outcome:
    job = replace(job, today=state.today)
    if store is not None:
        decided = {(d.overlay, d.target): d for d in state.decisions}
        job = replace(
            job,
            resolutions={key: store.get(d.data) for key, d in decided.items()},
            met={key: d.met for key, d in decided.items()},
        )
    ported = run_port(job, report=workspace.say)
    ported = _explain(ported, state.request)
    if store is None:
        return Outcome(ported, exit_code=5 if ported.open else 0)
    if not ported.open:
        written = write_ported(ported, workspace.overlays_folder)
        store.remove()
        return Outcome(ported, tuple(written))
    current = next((o for o in ported.open if can_be_solved(o)), None)
    if current is None:
        store.save(replace(state, current="", shown={}))
        return Outcome(ported, (), tuple(_advise_skip(ported)), 5)
    # What a killed run leaves half laid out must not be read as somebody's solution.
    store.save(replace(state, current="", shown={}))
    shown = lay_out(store.repository, current, job.new.files, tag=job.new.tag)
    hashes = {path: store.keep(data) for path, data in shown.items()}
    for path, (met, data) in state.begun.items():
        if hashes.get(path) == met:
            (store.repository / path).write_bytes(store.get(data))
    store.save(replace(state, current=current.overlay, shown=hashes, begun={}))
    return Outcome(ported, (), tuple(_advise(store, current, len(ported.open))), 5)


def _explain(ported: Ported, request: Request) -> Ported:
    """Add upstream's commits to conflicts, where the source is a git repository on this machine."""
    from mindspeed_overlay.port.history import explain_conflicts

    kind, _, where = request.spec.partition(":")
    if kind != "git" or not where or not Path(where).expanduser().is_dir():
        return ported
    return explain_conflicts(ported, Path(where).expanduser())


def can_be_solved(overlay: OverlayResult) -> bool:
    """Whether there is anything to lay out; what waits for another overlay has nothing."""
    return any(patch.outcome in ("conflict", "gone") for patch in overlay.patches)


def _advise_skip(ported: Ported) -> list[str]:
    names = ", ".join(overlay.overlay for overlay in ported.open)
    return [
        f"nothing to solve by hand in {names}: put the overlays in order (`check` tells)",
        "and begin anew after `port --abort`; or leave them out with `port --skip ID`",
    ]


def _advise(store: Store, overlay: OverlayResult, count: int) -> list[str]:
    more = f" ({count - 1} more overlays after it)" if count > 1 else ""
    return [
        f"{overlay.overlay} is laid out as a merge in {store.repository}{more}",
        "  solve it there (git status, git mergetool, an editor), then one of",
        "    mindspeed-overlay port --continue",
        f"    mindspeed-overlay port --skip {overlay.overlay}",
        "    mindspeed-overlay port --abort",
    ]


def _take_decisions(store: Store, state: State) -> State:
    """Read the work repository; files as laid out, or with conflict markers, decide nothing."""
    if not state.current or state.current in state.request.skip:
        return state
    if not store.repository.is_dir():
        return state
    shown = {path: store.get(name) for path, name in state.shown.items()}
    left, marked = read_back(store.repository, shown)
    changed = {path: store.keep(data) for path, data in left.items() if data != shown[path]}
    begun = {path: (state.shown[path], data) for path, data in changed.items() if path in marked}
    # Who changes their own solution again was shown that one, made of what they met at first.
    met = {d.data: d.met for d in state.decisions if d.overlay == state.current}
    decisions = [
        Decision(
            overlay=state.current,
            target=path,
            met=met.get(state.shown[path], state.shown[path]),
            data=data,
        )
        for path, data in changed.items()
        if path not in marked
    ]
    return decide(replace(state, begun=begun), *decisions)


def _today() -> str:
    return datetime.date.today().isoformat()
