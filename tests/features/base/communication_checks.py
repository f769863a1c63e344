"""What `test_communication` runs on a tree: scenarios on ranks, and questions to a process."""

import os
import sys
from typing import Any

import pytest
import torch

# Neither fp32 nor each other's sums hold these.
_DOUBLES = ([1.7e9 + 2**-20, -(2.0**53), 0.1], [1.7e9 + 2**-21, 2.0**53 - 1, 1e-300])


def reduce_doubles() -> dict[str, torch.Tensor]:
    """Sum, minimum and maximum over two ranks, of doubles that `hccl` refuses to reduce."""
    from mindspeed.core.communication import all_reduce_double

    results = {}
    rank = torch.distributed.get_rank()
    for name in ("SUM", "MIN", "MAX"):
        values = torch.tensor(_DOUBLES[rank], dtype=torch.float64, device="cuda")
        all_reduce_double(values, op=getattr(torch.distributed.ReduceOp, name))
        results[name] = values
    narrow = torch.tensor([1.0 + rank], device="cuda")
    with pytest.raises(RuntimeError, match=r"Unsupported data type torch\.float64"):
        torch.distributed.all_reduce(values)
    all_reduce_double(narrow)  # other types take the usual way
    results["fp32"] = narrow
    return results


def expect_doubles() -> dict[str, torch.Tensor]:
    """What `reduce_doubles` must answer."""
    first, second = (torch.tensor(values, dtype=torch.float64) for values in _DOUBLES)
    return {
        "SUM": first + second,
        "MIN": torch.minimum(first, second),
        "MAX": torch.maximum(first, second),
        "fp32": torch.tensor([3.0]),
    }


def make_groups() -> dict[str, torch.Tensor]:
    """Options for two kinds of group; one is made and used."""
    from megatron.core.parallel_state import get_nccl_options

    settings = {"dp": {"is_high_priority_stream": True}, "tp": {}}
    fast, plain = (get_nccl_options(name, settings) for name in ("dp", "tp"))
    group = torch.distributed.new_group([0], pg_options=fast)
    values = torch.ones(2, device="cuda")
    torch.distributed.all_reduce(values, group=group)
    priorities = [fast.is_high_priority_stream, plain.is_high_priority_stream]
    unnamed = get_nccl_options("pp", settings)
    return {"reduced": values, "priorities": torch.tensor([*priorities, unnamed is None])}


def set_foreign_options() -> dict[str, torch.Tensor]:
    """Ask for what NCCL alone has."""
    from megatron.core.parallel_state import get_nccl_options

    get_nccl_options("dp", {"dp": {"max_ctas": 8, "net_name": "IB"}})
    return {}


def validate_deterministic_arguments() -> dict[str, torch.Tensor]:
    """`--deterministic-mode` through Megatron's validation, with no variable set."""
    from megatron.training.arguments import parse_args, validate_args

    for name in ("NCCL_ALGO", "HCCL_DETERMINISTIC"):
        os.environ.pop(name, None)
    sizes = "--num-layers 2 --hidden-size 16 --num-attention-heads 2 --seq-length 8"
    more = "--max-position-embeddings 8 --micro-batch-size 1 --mock-data --transformer-impl local"
    sys.argv = ["train", *sizes.split(), *more.split(), "--deterministic-mode"]
    validate_args(parse_args())
    found = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(False)
    return {"on": torch.tensor([found, os.environ["HCCL_DETERMINISTIC"] == "true"])}


def contradict_determinism() -> dict[str, torch.Tensor]:
    """Deterministic mode in an environment that asks HCCL for the opposite."""
    from mindspeed.core.communication import reduces_in_fixed_order

    os.environ["HCCL_DETERMINISTIC"] = "false"
    reduces_in_fixed_order()
    return {}


def ask_without_npu() -> list[Any]:
    """Whether anything of HCCL shows where there is no NPU."""
    from mindspeed.core.communication import has_hccl, reduces_in_fixed_order

    return [has_hccl(), reduces_in_fixed_order(), "HCCL_DETERMINISTIC" in os.environ]
