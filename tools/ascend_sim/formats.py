"""Format casts: the data stays in its order, the private format is reported.

A chip stores some tensors in fractal layouts. Here every tensor keeps the order of its sizes and
strides; only the descriptor of torch_npu, which `get_npu_format` reads, and the padded size of the
storage follow the format. torch_npu allocates both, `allow_internal_format` included.
"""

from typing import Any

import torch
from torch import Tensor

from ascend_sim import alias

KERNELS: dict[str, Any] = {}
"""`npu::` operator with overload to its kernel, which gets device tensors."""


def _allocate(tensor: Tensor, acl_format: int) -> Tensor:
    empty: Tensor = torch.ops.npu.empty_with_format.default(
        tensor.shape, dtype=tensor.dtype, device=tensor.device, acl_format=acl_format
    )
    alias.to_cpu(empty).copy_(alias.to_cpu(tensor))
    return empty


def cast(input: Tensor, acl_format: int, *dtypes: int) -> Tensor:
    """Return a copy that reports `acl_format`."""
    return _allocate(input, acl_format)


def cast_(input: Tensor, acl_format: int) -> Tensor:
    """Give `input` storage of another format, with the same values."""
    input.set_(_allocate(input, acl_format))  # type: ignore[call-overload]
    return input


def cast_like_(
    input: Tensor,
    src: Tensor,
    *,
    customize_dtype: int | None = None,
    input_dtype: int | None = None,
) -> Tensor:
    """Give `input` storage in the format of `src`."""
    return cast_(input, torch.ops.npu.get_npu_format.default(src))


def cast_to_(
    input: Tensor,
    acl_format: int,
    *,
    customize_dtype: int | None = None,
    input_dtype: int | None = None,
) -> Tensor:
    """Give `input` storage in format number `acl_format`."""
    return cast_(input, acl_format)


KERNELS.update(
    {
        "_npu_format_cast": cast,
        "_npu_format_cast.aclnn": cast,
        "_npu_format_cast.input_dtype": cast,
        "npu_format_cast_": cast_like_,
        "npu_format_cast_.acl_format": cast_to_,
    }
)
