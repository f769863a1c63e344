"""Collectives on simulated devices: registers backend `hccl` and the device's c10d operators.

torch_npu's own `ProcessGroupHCCL` needs HCCL; in its place stands `hccl.Hccl`, over gloo. Calls
reach it as they reach any backend: through the c10d operators, whose device kernels are registered
here, or, from torch_npu's Python code, by method.
"""

import importlib
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from ascend_sim import comm_log
from ascend_sim.hccl import Hccl
from ascend_sim.hccl_base import Batch

_c10d: Any = torch._C._distributed_c10d
_python_c10d: Any = dist.distributed_c10d
_Library: Any = torch.library.Library

_NPU = torch.device("npu")
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
    for namespace, kernels in (("c10d", _KERNELS), ("_c10d_functional", _FUNCTIONAL)):
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
    backend = _backend(group or _python_c10d._get_default_group())
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


def _backend(group: Any) -> Any:
    backend = group._get_backend(_NPU)
    return getattr(backend, "wrapped_pg", backend)  # TORCH_DISTRIBUTED_DEBUG=DETAIL wraps it


def _options(kind: Any, *, async_op: bool = True, op: Any = None, root: int | None = None) -> Any:
    options = kind()
    options.asyncOp = async_op
    if op is not None:
        options.reduceOp = _c10d.ReduceOp(_c10d.ReduceOp.RedOpType(op.op()))
    if root is not None:
        options.rootRank = root
    return options


def _unbox(group: Any) -> Any:
    return _backend(_c10d.ProcessGroup.unbox(group))


def _all_reduce(tensors: Any, group: Any, op: Any, _: Any, async_op: bool = True, *__: Any) -> Any:
    options = _options(_c10d.AllreduceOptions, async_op=async_op, op=op)
    return tensors, _unbox(group).allreduce(tensors, options).boxed()


def _all_reduce_coalesced(tensors: Any, group: Any, op: Any, async_op: bool = True, *_: Any) -> Any:
    options = _options(_c10d.AllreduceCoalescedOptions, async_op=async_op, op=op)
    return _unbox(group).allreduce_coalesced(tensors, options).boxed()


def _all_gather(outputs: Any, inputs: Any, group: Any, async_op: bool = True, *_: Any) -> Any:
    options = _options(_c10d.AllgatherOptions, async_op=async_op)
    return outputs, _unbox(group).allgather(outputs, inputs, options).boxed()


def _all_gather_coalesced(outputs: Any, inputs: Any, group: Any, async_op: bool = True) -> Any:
    options = _options(_c10d.AllgatherOptions, async_op=async_op)
    return _unbox(group).allgather_coalesced(outputs, inputs, options).boxed()


def _all_gather_base(output: Any, input: Any, group: Any, async_op: bool = True, *_: Any) -> Any:
    options = _options(_c10d.AllgatherOptions, async_op=async_op)
    return output, _unbox(group)._allgather_base(output, input, options).boxed()


def _all_gather_base_coalesced(outputs: Any, inputs: Any, group: Any, async_op: bool = True) -> Any:
    options = _options(_c10d.AllgatherOptions, async_op=async_op)
    backend = _unbox(group)
    if isinstance(backend, Hccl):
        return backend.allgather_into_tensor_coalesced(outputs, inputs, options).boxed()
    works = [backend._allgather_base(o, i, options) for o, i in zip(outputs, inputs, strict=True)]
    return works[-1].boxed()


def _reduce_scatter(
    outputs: Any, inputs: Any, group: Any, op: Any, async_op: bool = True, *_: Any
) -> Any:
    options = _options(_c10d.ReduceScatterOptions, async_op=async_op, op=op)
    return outputs, _unbox(group).reduce_scatter(outputs, inputs, options).boxed()


def _reduce_scatter_base(
    output: Any, input: Any, group: Any, op: Any, async_op: bool = True, *_: Any
) -> Any:
    options = _options(_c10d.ReduceScatterOptions, async_op=async_op, op=op)
    return output, _unbox(group)._reduce_scatter_base(output, input, options).boxed()


def _reduce_scatter_base_coalesced(
    outputs: Any, inputs: Any, group: Any, op: Any, async_op: bool = True, *_: Any
) -> Any:
    options = _options(_c10d.ReduceScatterOptions, async_op=async_op, op=op)
    backend = _unbox(group)
    if isinstance(backend, Hccl):
        return backend.reduce_scatter_tensor_coalesced(outputs, inputs, options).boxed()
    pairs = zip(outputs, inputs, strict=True)
    return [backend._reduce_scatter_base(o, i, options) for o, i in pairs][-1].boxed()


def _all_to_all(outputs: Any, inputs: Any, group: Any, async_op: bool = True, *_: Any) -> Any:
    options = _options(_c10d.AllToAllOptions, async_op=async_op)
    return outputs, _unbox(group).alltoall(outputs, inputs, options).boxed()


def _all_to_all_base(
    output: Any,
    input: Any,
    group: Any,
    output_splits: Any,
    input_splits: Any,
    async_op: bool = True,
    *_: Any,
) -> Any:
    options = _options(_c10d.AllToAllOptions, async_op=async_op)
    splits = list(output_splits), list(input_splits)
    return _unbox(group).alltoall_base(output, input, *splits, options).boxed()


def _broadcast(tensors: Any, group: Any, root: int, _: int, async_op: bool = True, *__: Any) -> Any:
    options = _options(_c10d.BroadcastOptions, async_op=async_op, root=root)
    return tensors, _unbox(group).broadcast(tensors, options).boxed()


def _reduce(
    tensors: Any, group: Any, op: Any, root: int, _: int, async_op: bool = True, *__: Any
) -> Any:
    options = _options(_c10d.ReduceOptions, async_op=async_op, op=op, root=root)
    return _unbox(group).reduce(tensors, options).boxed()


def _gather(
    outputs: Any, inputs: Any, group: Any, root: int, async_op: bool = True, *_: Any
) -> Any:
    options = _options(_c10d.GatherOptions, async_op=async_op, root=root)
    return _unbox(group).gather(outputs, inputs, options).boxed()


def _scatter(
    outputs: Any, inputs: Any, group: Any, root: int, async_op: bool = True, *_: Any
) -> Any:
    options = _options(_c10d.ScatterOptions, async_op=async_op, root=root)
    return outputs, _unbox(group).scatter(outputs, inputs, options).boxed()


def _barrier(_: Any, group: Any, __: Any, async_op: bool = True, *___: Any) -> Any:
    options = _options(_c10d.BarrierOptions, async_op=async_op)
    return _unbox(group).barrier(options).boxed()


def _send(tensors: Any, group: Any, destination: int, tag: int) -> Any:
    return _unbox(group).send(tensors, destination, tag).boxed()


def _recv(tensors: Any, group: Any, source: int, tag: int) -> Any:
    return _unbox(group).recv(tensors, source, tag).boxed()


def _recv_any_source(tensors: Any, group: Any, tag: int) -> Any:
    return _unbox(group).recv_anysource(tensors, tag).boxed()


def _wait_tensor(tensor: torch.Tensor) -> torch.Tensor:
    comm_log.waited_for_tensor(tensor)
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    waited: torch.Tensor = torch.ops._c10d_functional.wait_tensor.default.redispatch(keys, tensor)
    return waited


_KERNELS: dict[str, Callable[..., Any]] = {
    "allreduce_": _all_reduce,
    "allreduce_coalesced_": _all_reduce_coalesced,
    "allgather_": _all_gather,
    "allgather_coalesced_": _all_gather_coalesced,
    "_allgather_base_": _all_gather_base,
    "allgather_into_tensor_coalesced_": _all_gather_base_coalesced,
    "reduce_scatter_": _reduce_scatter,
    "_reduce_scatter_base_": _reduce_scatter_base,
    "reduce_scatter_tensor_coalesced_": _reduce_scatter_base_coalesced,
    "alltoall_": _all_to_all,
    "alltoall_base_": _all_to_all_base,
    "broadcast_": _broadcast,
    "reduce_": _reduce,
    "gather_": _gather,
    "scatter_": _scatter,
    "barrier": _barrier,
    "send": _send,
    "recv_": _recv,
    "recv_any_source_": _recv_any_source,
}
_FUNCTIONAL = {"wait_tensor": _wait_tensor}


def _watch_waits() -> None:
    """Let the log see waits: the handles are C++ objects, and their class is open to Python."""
    work: Any = _c10d.Work
    plain_wait, plain_completed = work.wait, work.is_completed

    def wait(self: Any, *arguments: Any, **options: Any) -> Any:
        comm_log.waited(self)
        return plain_wait(self, *arguments, **options)

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
    backend = _backend(group) if torch.device(device).type == "npu" else None
    return backend if isinstance(backend, Hccl) else None
