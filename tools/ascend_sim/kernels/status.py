"""The overflow flag of the vector cores, which never rises here.

Operators: npu_alloc_float_status, npu_get_float_status, npu_clear_float_status. On Ascend910B and
later the flag belongs to the saturation mode; in the default mode infinities and NaN appear in the
results themselves, as they do on the CPU. Shapes and dtypes are those of Ascend910B.
"""

import torch
from torch import Tensor

from ascend_sim.kernels.rules import require
from ascend_sim.registry import kernel

_LENGTH = 8


@kernel("npu_alloc_float_status", document="torch_npu-npu_alloc_float_status")
def alloc_float_status(input: Tensor) -> Tensor:
    """Return float32 zeros [8], whatever `input` is."""
    return torch.zeros(_LENGTH)


@kernel("npu_get_float_status", document="torch_npu-npu_get_float_status")
def get_float_status(input: Tensor, mode: int = 0) -> Tensor:
    """Return int32 zeros [8]: no overflow.

    Raises:
        RuntimeError: `mode` is neither 0 nor 1 (debug).
    """
    require("npu_get_float_status", mode in (0, 1), f"mode must be 0 or 1, not {mode}")
    return torch.zeros(_LENGTH, dtype=torch.int32)


@kernel("npu_clear_float_status", document="torch_npu-npu_clear_float_status")
def clear_float_status(input: Tensor, mode: int = 0) -> Tensor:
    """Return zeros [8] in the dtype of `input`.

    Raises:
        RuntimeError: `mode` is neither 0 nor 1 (debug).
    """
    require("npu_clear_float_status", mode in (0, 1), f"mode must be 0 or 1, not {mode}")
    return input.new_zeros(_LENGTH)
