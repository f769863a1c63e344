"""Matrix products fused with an all-to-all: rows of one operand traded for columns.

Operators: npu_all_to_all_matmul (exchange, then multiply), npu_matmul_all_to_all (multiply, then
exchange). Products accumulate in float32 and are cast before they are sent. Follows the torch_npu
pages of both operators.

Dims: m rows on this rank, k reduced size, n columns, h width before the exchange, p ranks.
"""

import torch
from torch import Tensor

from ascend_sim.kernels.comm import all_to_all, find_group
from ascend_sim.kernels.rules import multiply_in_fp32, require, require_dtype
from ascend_sim.registry import kernel

_HALVES = (torch.float16, torch.bfloat16)


def _check_all_to_all(
    name: str, x1: Tensor, x2: Tensor, world_size: int, bias: Tensor | None
) -> None:
    require(name, world_size in (2, 4, 8, 16), "world_size must be in [2, 4, 8, 16]")
    require(name, x1.dim() == 2, f"x1 must be 2-D, not {x1.dim()}-D")
    require(name, x1.is_contiguous(), "x1 must be contiguous")
    require_dtype(name, "x1", x1, _HALVES)
    require(name, x2.dim() == 2 and x2.dtype == x1.dtype, "x2 must be 2-D, in the dtype of x1")
    if bias is not None:
        expected = torch.float16 if x1.dtype == torch.float16 else torch.float32
        require_dtype(name, f"bias with {x1.dtype} x1", bias, (expected,))
        require(name, bias.shape == x2.shape[1:], "bias must have one value per column")


@kernel("npu_all_to_all_matmul", document="torch_npu-npu_all_to_all_matmul")
def all_to_all_matmul(
    x1: Tensor,
    x2: Tensor,
    hcom: str,
    world_size: int,
    bias: Tensor | None = None,
    all2all_axes: list[int] | None = None,
    all2all_out_flag: bool = True,
    comm_mode: str | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Trade rows for columns of x1, then multiply: permute(all_to_all(x1)) @ x2 + bias.

    Args:
        x1: [m, h], fp16 or bf16, contiguous, p divides m.
        x2: [p·h, n], dtype of x1.
        hcom: communicator name of the group.
        world_size: p, in {2, 4, 8, 16}.
        bias: [n], fp16 with fp16, fp32 with bf16.
        all2all_axes: None, empty or [-2, -1].
        all2all_out_flag: also return the exchanged x1.
        comm_mode: no effect on the result.

    Returns:
        [m / p, n], and [m / p, p·h] (columns in rank order) or None.

    Raises:
        RuntimeError: a documented rule is broken.
    """
    name = "npu_all_to_all_matmul"
    _check_all_to_all(name, x1, x2, world_size, bias)
    require(name, list(all2all_axes or [-2, -1]) == [-2, -1], "all2all_axes must be [-2, -1]")
    rows, width = x1.shape
    require(name, rows % world_size == 0, "world_size must divide the rows of x1")
    require(name, width * world_size == x2.size(0), "x2 must have world_size * h rows")
    group = find_group(name, hcom, world_size)
    received = all_to_all(group, x1, [rows // world_size] * world_size)
    exchanged = received.reshape(world_size, rows // world_size, width).transpose(0, 1)
    exchanged = exchanged.reshape(rows // world_size, world_size * width)
    product = multiply_in_fp32(exchanged, x2)
    if bias is not None:
        product = product + bias.float()
    return product.to(x1.dtype), exchanged if all2all_out_flag else None


@kernel("npu_matmul_all_to_all", document="torch_npu-npu_matmul_all_to_all")
def matmul_all_to_all(
    x1: Tensor,
    x2: Tensor,
    hcom: str,
    world_size: int,
    bias: Tensor | None = None,
    all2all_axes: list[int] | None = None,
    comm_mode: str | None = None,
) -> Tensor:
    """Multiply, then trade columns of the product for rows.

    Args:
        x1: [m, k], fp16 or bf16, contiguous.
        x2: [k, n], dtype of x1, p divides n.
        hcom: communicator name of the group.
        world_size: p, in {2, 4, 8, 16}.
        bias: [n], fp16 with fp16, fp32 with bf16.
        all2all_axes: None, empty or [-1, -2].
        comm_mode: no effect on the result.

    Returns:
        [p·m, n / p]: this rank's columns of every rank's product, in rank order.

    Raises:
        RuntimeError: a documented rule is broken.
    """
    name = "npu_matmul_all_to_all"
    _check_all_to_all(name, x1, x2, world_size, bias)
    require(name, list(all2all_axes or [-1, -2]) == [-1, -2], "all2all_axes must be [-1, -2]")
    require(name, x1.size(1) == x2.size(0), "x1 and x2 must agree about k")
    require(name, x2.size(1) % world_size == 0, "world_size must divide the columns of x2")
    product = multiply_in_fp32(x1, x2)
    if bias is not None:
        product = product + bias.float()
    rows, columns = product.shape[0], product.shape[1] // world_size
    blocks = product.to(x1.dtype).reshape(rows, world_size, columns).transpose(0, 1)
    sent = blocks.reshape(world_size * rows, columns)
    return all_to_all(find_group(name, hcom, world_size), sent, [rows] * world_size)
