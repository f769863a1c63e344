"""Device kernels of the c10d operators: what `dist.all_reduce` and the rest reach in C++.

Each hands its tensors to the group's backend and boxes the handle. Backends that are not ours (the
fake one) are served by their own methods.
"""

from collections.abc import Callable
from typing import Any

import torch

from ascend_sim import comm_log
from ascend_sim.hccl import Hccl
from ascend_sim.hccl_base import raise_failure

_c10d: Any = torch._C._distributed_c10d


def find_backend(group: Any) -> Any:
    """The backend that serves device tensors in a process group."""
    backend = group._get_backend(torch.device("npu"))
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
    return find_backend(_c10d.ProcessGroup.unbox(group))


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
    works = comm_log.waited_for_tensor(tensor)
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    waited: torch.Tensor = torch.ops._c10d_functional.wait_tensor.default.redispatch(keys, tensor)
    for work in works:
        raise_failure(work)
    return waited


KERNELS: dict[str, Callable[..., Any]] = {
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
FUNCTIONAL = {"wait_tensor": _wait_tensor}
