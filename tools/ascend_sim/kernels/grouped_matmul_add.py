"""Accumulating grouped matrix multiplication: the weight gradients of all experts in one call.

Operators: npu_grouped_matmul_add_ and the form that also returns a copy. Follows the torch_npu page
of npu_grouped_matmul_add.
"""

import torch
from torch import Tensor

from ascend_sim.kernels.grouped_products import group_sizes
from ascend_sim.kernels.rules import multiply_in_fp32, require, require_dtype
from ascend_sim.registry import kernel


@kernel("npu_grouped_matmul_add_", document="torch_npu-npu_grouped_matmul_add")
def grouped_matmul_add_(
    input: Tensor,
    x: Tensor,
    weight: Tensor,
    group_list: Tensor,
    *,
    transpose_x: bool = True,
    transpose_weight: bool = False,
    group_type: int = 2,
    group_list_type: int | None = 0,
) -> Tensor:
    """Add the product of each group to `input` in place: input[g] += x_g^T @ weight_g.

    Args:
        input: [e, k, n] float32 (a [e·k, n] view works on the device too), written.
        x: [m, k], fp16 or bf16.
        weight: [m, n], dtype of x.
        group_list: int64 [e], cumulative ends, the last one at most m.
        transpose_x: only True.
        transpose_weight: only False.
        group_type: only 2.
        group_list_type: 0; other forms exist on Ascend950 only and are ignored elsewhere.

    Returns:
        `input`.

    Raises:
        RuntimeError: a documented rule is broken.
    """
    name = "npu_grouped_matmul_add_"
    require(name, group_type == 2, f"group_type must be 2, not {group_type}")
    require(name, transpose_x and not transpose_weight, "only x is transposed, and always")
    require(name, not group_list_type, "group_list_type must be 0 on this device")
    require_dtype(name, "input", input, (torch.float32,))
    require_dtype(name, "x", x, (torch.float16, torch.bfloat16))
    require(name, weight.dtype == x.dtype, "x and weight must have the same dtype")
    require(name, x.dim() == 2 and weight.dim() == 2, "x and weight must be 2-D")
    require(name, x.size(0) == weight.size(0), "x and weight must have the same rows")
    sizes = group_sizes(name, group_list, 0)
    require(name, sum(sizes) <= x.size(0), "group_list must not end beyond the rows of x")
    shape = (len(sizes), x.size(1), weight.size(1))
    require(name, tuple(input.shape) == shape, f"input must be {list(shape)}")
    used = sum(sizes)
    parts = zip(torch.split(x[:used], sizes), torch.split(weight[:used], sizes), strict=True)
    for group, (rows, columns) in enumerate(parts):
        input[group] += multiply_in_fp32(rows.T, columns)
    return input


@kernel("npu_grouped_matmul_add", document="torch_npu-npu_grouped_matmul_add")
def grouped_matmul_add(
    input: Tensor,
    x: Tensor,
    weight: Tensor,
    group_list: Tensor,
    *,
    transpose_x: bool = True,
    transpose_weight: bool = False,
    group_type: int = 2,
    group_list_type: int | None = 0,
) -> Tensor:
    """Return a copy of the sum; as on the device, `input` is written all the same."""
    return grouped_matmul_add_(
        input,
        x,
        weight,
        group_list,
        transpose_x=transpose_x,
        transpose_weight=transpose_weight,
        group_type=group_type,
        group_list_type=group_list_type,
    ).clone()
