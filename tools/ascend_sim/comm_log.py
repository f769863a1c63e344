"""What this rank sent: calls and bytes for each group, the order of launches and waits, and what
was launched and never waited for.

Bytes sent are those that must leave this rank in a bandwidth-optimal algorithm over p ranks, with n
the bytes of this rank's input (all_gather: its shard; reduce_scatter, scatter: the whole):

    all_reduce 2·n·(p-1)/p    all_gather n·(p-1)     reduce_scatter n·(p-1)/p
    broadcast  n at the root  reduce n but the root  gather n but the root
    scatter    n·(p-1)/p root all_to_all: all but the part for this rank itself
    send       n              recv, barrier 0

Payload bytes are n. Coalesced collectives are one call. A call is blocking if its caller asked for
a result rather than a handle; sends and receives do not tell, and count as not blocking.
"""

import atexit
import contextlib
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# Modules that hand over to C++ code, which launches collectives and waits for them itself.
_CALL_INTO_CPP = (
    "torch/distributed/utils.py",
    "torch/nn/parallel/distributed.py",
    "torch/autograd/graph.py",
)


@dataclass(frozen=True)
class Traffic:
    """The calls of one kind of collective in one group, as this rank made them."""

    group: str
    ranks: tuple[int, ...]
    collective: str
    calls: int = 0
    blocking_calls: int = 0
    payload_bytes: int = 0
    sent_bytes: int = 0


@dataclass(frozen=True)
class Event:
    """A line of the launch log.

    Attributes:
        kind: `launch` or `wait` of a collective, `compute` for an operator, `mark` for a test's
        own.
        name: the collective, operator or mark.
        group: the group's name, for a collective.
        launch: the number that a launch and its waits share, 0 for others.
    """

    kind: str
    name: str
    group: str = ""
    launch: int = 0


@dataclass(eq=False)
class Launch:
    """One launched collective; `work` and `kept` live until it has been waited for."""

    number: int
    collective: str
    group: str
    work: Any = None
    kept: Any = None
    storages: frozenset[int] = frozenset()
    stack: str = ""


@dataclass
class _State:
    traffic: dict[tuple[str, str], Traffic] = field(default_factory=dict)
    pending: dict[int, Launch] = field(default_factory=dict)
    log: list[Event] | None = None
    launches: int = 0
    stacks: bool = False


_state = _State()


def traffic() -> list[Traffic]:
    """What this rank did since the start or the last `reset_traffic`, by group and collective."""
    return [_state.traffic[key] for key in sorted(_state.traffic)]


def reset_traffic() -> None:
    """Count from zero again."""
    _state.traffic.clear()


def unwaited() -> list[str]:
    """The collectives launched from Python that nobody has waited for, oldest first."""
    return [
        f"{launch.collective} in group {launch.group!r} was never waited for{launch.stack}"
        for launch in _state.pending.values()
    ]


def report_unwaited_at_exit() -> None:
    """From now on remember where collectives are launched; print the unwaited ones at exit."""
    if not _state.stacks:
        _state.stacks = True
        atexit.register(_print_unwaited)


@contextlib.contextmanager
def record_launches(*, compute: bool = True) -> Iterator[list[Event]]:
    """Record launches and waits in order of time, in this thread and in its backward passes.

    Args:
        compute: record the operators that run on device tensors too, views excepted.

    Yields:
        The list that grows.
    """
    before, _state.log = _state.log, []
    try:
        compute_log: Any = _ComputeLog
        with compute_log() if compute else contextlib.nullcontext():
            yield _state.log
    finally:
        _state.log = before


def mark(name: str) -> None:
    """Put a mark into the launch log that is being recorded."""
    if _state.log is not None:
        _state.log.append(Event("mark", name))


def count(
    collective: str,
    *,
    group: str,
    ranks: tuple[int, ...],
    payload_bytes: int,
    sent_bytes: int,
    blocking: bool,
) -> Launch:
    """Count one call and log its launch; `track` follows if it has a handle."""
    key = (group, collective)
    old = _state.traffic.get(key) or Traffic(group, ranks, collective)
    _state.traffic[key] = Traffic(
        group,
        ranks,
        collective,
        old.calls + 1,
        old.blocking_calls + blocking,
        old.payload_bytes + payload_bytes,
        old.sent_bytes + sent_bytes,
    )
    _state.launches += 1
    if _state.log is not None:
        _state.log.append(Event("launch", collective, group, _state.launches))
    return Launch(_state.launches, collective, group)


def track(launch: Launch, work: Any, *, kept: Any, storages: frozenset[int]) -> None:
    """Remember a launched collective until someone waits for `work`.

    A launch made from C++ (the DDP reducer) is not remembered: its waits are C++ too and unseen.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_globals.get("__package__") == __package__:
        frame = frame.f_back
    if frame is None or frame.f_code.co_filename.endswith(_CALL_INTO_CPP):
        return
    if _state.stacks:
        launch.stack = ", launched at\n" + "".join(traceback.format_stack(frame, limit=6))
    launch.work, launch.kept, launch.storages = work, kept, storages
    _state.pending[id(work)] = launch


def waited(work: Any) -> None:
    """Note that someone waits for `work`."""
    launch = _state.pending.pop(id(work), None)
    if launch is not None and _state.log is not None:
        _state.log.append(Event("wait", launch.collective, launch.group, launch.number))


def waited_for_tensor(tensor: torch.Tensor) -> list[Any]:
    """Note that someone waits for the collectives that write into the storage of `tensor`.

    Returns:
        Their handles.
    """
    storage = tensor.untyped_storage().data_ptr()
    works = [x.work for x in _state.pending.values() if storage in x.storages]
    for work in works:
        waited(work)
    return works


def _print_unwaited() -> None:
    for line in unwaited():
        print(f"ascend_sim: {line}", file=sys.stderr)


class _ComputeLog(TorchDispatchMode):
    """Logs every operator on device tensors that computes or moves data."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        namespace = func.namespace
        if _state.log is not None and not func.is_view and "c10d" not in namespace:
            flat = torch.utils._pytree.tree_leaves((args, kwargs))
            if any(isinstance(x, torch.Tensor) and x.device.type == "npu" for x in flat):
                _state.log.append(Event("compute", func._schema.name.partition("::")[2]))
        return func(*args, **(kwargs or {}))
