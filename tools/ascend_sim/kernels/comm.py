"""The collectives that fused operators need, over CPU tensors and a communicator name.

Every function returns when the result is there. Bytes on the wire are those of the given dtype.
"""

from typing import Any

import torch
from torch import Tensor

from ascend_sim.kernels.rules import require

Group = Any
"""The gloo backend behind a process group (`ascend_sim.distributed.cpu_backend`)."""


def find_group(operator: str, hcom: str, world_size: int | None) -> Group:
    """Return the CPU backend of the group with this communicator name.

    Raises:
        RuntimeError: `world_size` is not the size of the group.
    """
    from ascend_sim import distributed

    group = distributed.group_by_comm_name(hcom)
    fits = world_size is None or world_size == group.size()
    require(operator, fits, f"world_size {world_size} is not the group's, {group.size()}")
    return distributed.cpu_backend(group)


def all_gather(group: Group, rows: Tensor) -> Tensor:
    """Concatenate the rows of all ranks, in rank order."""
    source = rows.contiguous()
    parts = [torch.empty_like(source) for _ in range(group.size())]
    group.allgather([parts], [source]).wait()
    return torch.cat(parts)


def all_reduce(group: Group, tensor: Tensor) -> Tensor:
    """Return the sum over the ranks."""
    total = tensor.clone(memory_format=torch.contiguous_format)
    group.allreduce([total]).wait()
    return total


def reduce_scatter(group: Group, rows: Tensor) -> Tensor:
    """Return this rank's part of the sum over the ranks."""
    parts = [part.contiguous() for part in rows.chunk(group.size())]
    result = torch.empty_like(parts[0])
    group.reduce_scatter([result], [parts], torch.distributed.ReduceScatterOptions()).wait()
    return result


def all_to_all(
    group: Group, rows: Tensor, send: list[int], receive: list[int] | None = None
) -> Tensor:
    """Send `send[r]` rows to rank r; return the rows received, in rank order.

    Args:
        group: backend of all the ranks that call.
        rows: the rows for rank 0, then those for rank 1, and so on.
        send: rows for each rank.
        receive: rows from each rank, by default as many as are sent.
    """
    counts = send if receive is None else receive
    received = rows.new_empty((sum(counts), *rows.shape[1:]))
    group.alltoall_base(received, rows.contiguous(), counts, send).wait()
    return received
