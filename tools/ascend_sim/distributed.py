"""Collectives on simulated devices: registers backend `hccl` and the device's c10d operators.

torch_npu's own `ProcessGroupHCCL` needs HCCL; in its place stands `hccl.Hccl`, over gloo. Calls
reach it as they reach any backend: through the c10d operators, whose device kernels are registered
here, or, from torch_npu's Python code, by method.
"""

import importlib
import os
from typing import Any

import torch
import torch.distributed as dist

from ascend_sim import comm_log
from ascend_sim.c10d_kernels import FUNCTIONAL, KERNELS, find_backend
from ascend_sim.hccl import Hccl
from ascend_sim.hccl_base import Batch, raise_failure

_c10d: Any = torch._C._distributed_c10d
_python_c10d: Any = dist.distributed_c10d
_Library: Any = torch.library.Library

_KEY = "PrivateUse1"
# Kept for good: a group that is destroyed here may still be read by a slower peer.
_groups: dict[str, Hccl] = {}
_kept: list[Hccl] = []
_libraries: list[Any] = []


def install() -> None:
    """Carry `hccl` groups by gloo from now on; a second call does nothing.

    ASCEND_SIM_REPORT_UNWAITED=1 makes the process name, at exit, the collectives that it never
    waited for.

    Raises:
        RuntimeError: process groups exist already.
    """
    if _libraries:
        return
    if dist.is_initialized():
        raise RuntimeError("ascend_sim.install() must come before init_process_group")
    _python_c10d.Backend._plugins["HCCL"] = _python_c10d.Backend._BackendPlugin(_make_group, True)
    for namespace, kernels in (("c10d", KERNELS), ("_c10d_functional", FUNCTIONAL)):
        library = _Library(namespace, "IMPL")
        for name, kernel in kernels.items():
            library.impl(name, kernel, _KEY)
        _libraries.append(library)
    _watch_waits()
    _group_calls()
    if os.environ.get("ASCEND_SIM_REPORT_UNWAITED", "0") not in ("", "0"):
        comm_log.report_unwaited_at_exit()


def group_by_comm_name(name: str) -> Any:
    """The process group whose `get_hccl_comm_name` is `name`.

    Raises:
        ValueError: no group of this process has that name.
    """
    backend = _groups.get(name)
    if backend is None:
        raise ValueError(f"no hccl group is named {name!r}; get_hccl_comm_name gives the names")
    return _python_c10d._resolve_process_group(backend.group_name)


def cpu_backend(group: Any | str | None = None) -> Hccl:
    """The backend that carries `group` and takes CPU tensors too; its traffic is counted.

    Args:
        group: a process group, the name of its communicator, or None for the default group.

    Raises:
        ValueError: the group has no `hccl` backend.
    """
    if isinstance(group, str):
        group = group_by_comm_name(group)
    backend = find_backend(group or _python_c10d._get_default_group())
    if not isinstance(backend, Hccl):
        raise ValueError(f"group {group} is carried by {type(backend).__name__}, not by hccl")
    return backend


def _make_group(options: Any, hccl_options: Any = None) -> Hccl:
    """Make a group with torch_npu's own options, filled in as torch_npu does."""
    hccl: Any = importlib.import_module("torch_npu")._C._distributed_c10d.ProcessGroupHCCL
    if not isinstance(hccl_options, hccl.Options):
        hccl_options = hccl.Options()
    hccl_options._timeout = options.timeout
    hccl_options.global_ranks_in_group = options.global_ranks_in_group
    hccl_options.group_id = options.group_id
    backend = Hccl(options, hccl_options)
    _groups[backend.get_hccl_comm_name(0)] = backend
    _kept.append(backend)
    return backend


def _watch_waits() -> None:
    """Let waits be logged and raise: the handles are C++ objects, their class is open to Python."""
    work: Any = _c10d.Work
    plain_wait, plain_completed = work.wait, work.is_completed

    def wait(self: Any, *arguments: Any, **options: Any) -> Any:
        comm_log.waited(self)
        answer = plain_wait(self, *arguments, **options)
        raise_failure(self)
        return answer

    def is_completed(self: Any) -> bool:
        done: bool = plain_completed(self)
        if done:
            comm_log.waited(self)
        return done

    work.wait, work.is_completed = wait, is_completed
    # On a device this makes the stream wait; the simulated stream is the host's own time.
    work.synchronize = work.block_current_stream = wait


def _group_calls() -> None:
    """Let `_coalescing_manager` collect the sends and receives of a device's group."""
    group_class: Any = _c10d.ProcessGroup
    plain_start, plain_end = group_class._start_coalescing, group_class._end_coalescing

    def start(self: Any, device: Any) -> None:
        backend = _backend_on(self, device)
        if backend is None:
            plain_start(self, device)
        else:
            backend.batch = []

    def end(self: Any, device: Any) -> Any:
        backend = _backend_on(self, device)
        if backend is None:
            return plain_end(self, device)
        works, backend.batch = backend.batch or [], None
        return Batch(works)

    group_class._start_coalescing, group_class._end_coalescing = start, end


def _backend_on(group: Any, device: Any) -> Hccl | None:
    backend = find_backend(group) if torch.device(device).type == "npu" else None
    return backend if isinstance(backend, Hccl) else None
