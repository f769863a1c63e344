"""What HCCL does differently from NCCL, where Megatron's own code meets it.

Dims: p ranks in the group.
"""

import os
import sys
from collections.abc import Mapping
from typing import Any

import torch

_DETERMINISTIC = "HCCL_DETERMINISTIC"
_REDUCTIONS = {
    torch.distributed.ReduceOp.SUM: torch.sum,
    torch.distributed.ReduceOp.MIN: torch.amin,
    torch.distributed.ReduceOp.MAX: torch.amax,
}


def has_hccl() -> bool:
    """Whether `transfer_to_npu` has put HCCL in NCCL's place."""
    group = getattr(torch.distributed, "ProcessGroupNCCL", None)
    return "torch_npu" in sys.modules and hasattr(getattr(group, "Options", None), "hccl_config")


def make_hccl_options(name: str, settings: Mapping[str, Any]) -> Any:
    """Options of one process group, from its entry in Megatron's NCCL configuration.

    Args:
        name: the group, such as `dp_cp`.
        settings: what upstream would hand to NCCL.

    Raises:
        ValueError: a setting that only NCCL has.
    """
    foreign = sorted(set(settings) - {"is_high_priority_stream"})
    if foreign:
        raise ValueError(
            f"nccl_communicator_config_path sets {', '.join(foreign)} for the group {name}: "
            "HCCL has no such settings. Remove them from the file; is_high_priority_stream may stay"
        )
    options = torch.distributed.ProcessGroupNCCL.Options()
    options.is_high_priority_stream = bool(settings.get("is_high_priority_stream", False))
    return options


def all_reduce_double(
    tensor: torch.Tensor, op: Any = torch.distributed.ReduceOp.SUM, group: Any = None
) -> None:
    """Reduce a small fp64 tensor in place; exact on HCCL too, which reduces no doubles.

    There each rank gathers the bytes of all and reduces them on the host, in the order of ranks:
    every rank has the same bits. Sends (p-1) times the tensor, so it is for a few numbers.

    Args:
        tensor: contiguous, fp64, on the device of the group's backend.
        op: SUM, MIN or MAX.
        group: the ranks, all of which must call; the default group if absent.
    """
    if torch.distributed.get_backend(group) != "hccl" or tensor.dtype != torch.float64:
        torch.distributed.all_reduce(tensor, op=op, group=group)
        return
    reduce = _REDUCTIONS[op]
    own = tensor.view(torch.int64)
    parts = [torch.empty_like(own) for _ in range(torch.distributed.get_world_size(group))]
    torch.distributed.all_gather(parts, own, group=group)
    gathered = torch.stack([part.cpu() for part in parts]).view(torch.float64)
    tensor.copy_(reduce(gathered, dim=0))


def reduces_in_fixed_order() -> bool:
    """Whether collectives are HCCL's, made deterministic here; NCCL_ALGO then means nothing.

    torch_npu tells HCCL so as well when deterministic algorithms are switched on. The variable
    reaches the groups that other libraries make.

    Raises:
        ValueError: the environment asks HCCL for the opposite.
    """
    if not has_hccl():
        return False
    asked = os.environ.setdefault(_DETERMINISTIC, "true")
    if asked.lower() == "false":
        raise ValueError(f"{_DETERMINISTIC}={asked} contradicts deterministic_mode: unset it")
    return True
