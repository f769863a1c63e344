"""Casts: of the dtype, and of the storage format, which the simulated device does not have.

Operators: npu_dtype_cast in its forms, the in-place format casts, and the private ones that
torch_npu's own npu_format_cast calls. Values do not depend on the format: a format cast is a copy,
in place it does nothing, and the format reported afterwards is the base format.
"""

import torch
from torch import Tensor

from ascend_sim.kernels.rules import refuse, require, resolve_dtype
from ascend_sim.registry import kernel

# The formats of CANN's aclFormat that a tensor of torch_npu can take.
_FORMATS = frozenset({-1, 0, 1, 2, 3, 4, 27, 29, 30, 32, 33, 50, 51})


@kernel("npu_dtype_cast", document="torch_npu-npu_dtype_cast")
def dtype_cast(input: Tensor, dtype: int, input_dtype: int | None = None) -> Tensor:
    """Return a copy of `input` in the dtype with the given id (torch_npu turns dtypes into ids).

    Raises:
        NotImplementedError: an id beyond torch's dtypes, or `input_dtype`, which names one.
    """
    if input_dtype is not None:
        refuse("npu_dtype_cast", f"input_dtype {input_dtype}")
    return input.to(resolve_dtype("npu_dtype_cast", dtype, input.dtype), copy=True)


@kernel("npu_dtype_cast_backward", document="torch_npu-npu_dtype_cast")
def dtype_cast_backward(
    grad: Tensor, dtype: torch.dtype, grad_dtype: int | None = None, input_dtype: int | None = None
) -> Tensor:
    """Return the gradient in the dtype of the forward input (`grad_dtype` names grad's own)."""
    if input_dtype is not None:
        refuse("npu_dtype_cast_backward", f"input_dtype {input_dtype}")
    return grad.to(dtype, copy=True)


@kernel("_npu_dtype_cast", document="torch_npu-npu_dtype_cast")
def private_dtype_cast(input: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a copy of `input` in `dtype`."""
    return input.to(dtype, copy=True)


@kernel("_npu_dtype_cast_backward", document="torch_npu-npu_dtype_cast")
def private_dtype_cast_backward(grad: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the gradient in the dtype of the forward input."""
    return grad.to(dtype, copy=True)


@kernel("npu_dtype_cast_", document="torch_npu-npu_dtype_cast")
def dtype_cast_(input: Tensor, src: Tensor) -> Tensor:
    """Write `src`, cast, into `input`; as on the device, nothing is written if dtypes agree."""
    if input.dtype != src.dtype:
        require("npu_dtype_cast_", input.shape == src.shape, "input and src must have one shape")
        input.copy_(src)
    return input


def _check_format(acl_format: int) -> None:
    require("npu_format_cast", acl_format in _FORMATS, f"{acl_format} is not an aclFormat")


def _cast_format(input: Tensor, acl_format: int) -> Tensor:
    _check_format(acl_format)
    return input.clone()


@kernel("_npu_format_cast", document="torch_npu-npu_format_cast")
def format_cast(input: Tensor, acl_format: int) -> Tensor:
    """Return a copy: the values of any format are those of the base format.

    Raises:
        RuntimeError: `acl_format` is no format of CANN's.
    """
    return _cast_format(input, acl_format)


@kernel("_npu_format_cast.aclnn", document="torch_npu-npu_format_cast")
def format_cast_aclnn(input: Tensor, acl_format: int, customize_dtype: int) -> Tensor:
    """As `format_cast`; `customize_dtype` chooses the tile width of the private format only."""
    return _cast_format(input, acl_format)


@kernel("_npu_format_cast.input_dtype", document="torch_npu-npu_format_cast")
def format_cast_input_dtype(
    input: Tensor, acl_format: int, customize_dtype: int, input_dtype: int
) -> Tensor:
    """As `format_cast`; both dtypes choose the tile width of the private format only."""
    return _cast_format(input, acl_format)


@kernel("npu_format_cast_", document="torch_npu-npu_format_cast_")
def format_cast_in_place(
    input: Tensor,
    src: Tensor,
    *,
    customize_dtype: int | None = None,
    input_dtype: int | None = None,
) -> Tensor:
    """Take the format of `src`: `input` as it is."""
    return input


@kernel("npu_format_cast_.acl_format", document="torch_npu-npu_format_cast_")
def format_cast_in_place_to(
    input: Tensor,
    acl_format: int,
    *,
    customize_dtype: int | None = None,
    input_dtype: int | None = None,
) -> Tensor:
    """Take a format: `input` as it is.

    Raises:
        RuntimeError: `acl_format` is no format of CANN's.
    """
    _check_format(acl_format)
    return input
