"""What the kernels of this package share: documented rules as errors, dtypes by number, fp32."""

from collections.abc import Iterable
from typing import NoReturn

import torch
from torch import Tensor

FLOATS = (torch.float16, torch.bfloat16, torch.float32)
INDICES = (torch.int32, torch.int64)

# Values of the `int dtype` parameters of torch_npu: torch's own enumeration below 256, from 285 on
# the types that torch lacks or had lacked (`torch_npu.float8_e5m2` is 291).
DTYPE_BY_ID = {
    0: torch.uint8,
    1: torch.int8,
    2: torch.int16,
    3: torch.int32,
    4: torch.int64,
    5: torch.float16,
    6: torch.float32,
    7: torch.float64,
    11: torch.bool,
    15: torch.bfloat16,
    23: torch.float8_e5m2,
    24: torch.float8_e4m3fn,
    291: torch.float8_e5m2,
    292: torch.float8_e4m3fn,
}


def require(operator: str, condition: bool, rule: str) -> None:
    """Raise RuntimeError, as the device does, when a documented rule does not hold."""
    if not condition:
        raise RuntimeError(f"npu::{operator}: {rule}")


def require_dtype(operator: str, name: str, tensor: Tensor, allowed: Iterable[torch.dtype]) -> None:
    """Raise RuntimeError unless `tensor` has one of the documented dtypes."""
    names = [str(dtype).removeprefix("torch.") for dtype in allowed]
    found = str(tensor.dtype).removeprefix("torch.")
    require(operator, found in names, f"{name} must be {', '.join(names)}, not {found}")


def refuse(operator: str, what: str) -> NoReturn:
    """Raise NotImplementedError for a documented mode that has no reference computation here."""
    raise NotImplementedError(f"npu::{operator}: {what} is not simulated")


def resolve_dtype(operator: str, dtype_id: int | None, default: torch.dtype) -> torch.dtype:
    """Return the dtype behind one of torch_npu's integer dtype parameters."""
    if dtype_id is None:
        return default
    if dtype_id not in DTYPE_BY_ID:
        refuse(operator, f"dtype id {dtype_id}")
    return DTYPE_BY_ID[dtype_id]


def multiply_in_fp32(left: Tensor, right: Tensor) -> Tensor:
    """Return `left @ right` accumulated in float32 (the cube unit's accumulator), not cast back."""
    return torch.matmul(left.float(), right.float())
