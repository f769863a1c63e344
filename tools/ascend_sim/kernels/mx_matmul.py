"""Products of fp8 matrices with MX scales: npu_quant_matmul (its mx mode), npu_add_quant_matmul(_).

An operand is its fp8 elements times the e8m0 scale of their block of 32 along k; a scale byte of 0
stands for zero. Products accumulate in float32. hifloat8 and packed fp4 operands are refused.
Follows the torch_npu page of npu_add_quant_matmul_ and, for npu_quant_matmul, which documents no
mx shapes, the golden computation in op-plugin's test of it.

Dims: m, k, n as in [m, k] @ [k, n]; c = ceil(k / 64), the pairs of blocks.
"""

import torch
from torch import Tensor

from ascend_sim.kernels.rules import multiply_in_fp32, refuse, require, require_dtype
from ascend_sim.registry import kernel

E8M0_ID = 293
"""`torch_npu.float8_e8m0fnu`."""

_ELEMENTS = (torch.float8_e4m3fn, torch.float8_e5m2)
_BLOCK = 32


def _decode_scale(scale: Tensor) -> Tensor:
    """Powers of two from e8m0 bytes; 0 is zero, 255 is NaN."""
    exponents = scale.int()
    values = torch.ldexp(torch.ones(scale.shape), exponents - 127)
    values = torch.where(exponents == 0, 0.0, values)
    return torch.where(exponents == 255, torch.nan, values)


def restore_rows(elements: Tensor, scale: Tensor) -> Tensor:
    """float32 of [..., rows, k] elements with [..., rows, c, 2] scales along k."""
    factors = _decode_scale(scale).flatten(-2).repeat_interleave(_BLOCK, -1)
    return elements.float() * factors[..., : elements.size(-1)]


def restore_columns(elements: Tensor, scale: Tensor) -> Tensor:
    """float32 of [..., k, columns] elements with [..., c, columns, 2] scales along k."""
    return restore_rows(elements.mT, scale.transpose(-3, -2)).mT


def check_operands(name: str, x1: Tensor, x2: Tensor, group_sizes: list[int] | None) -> None:
    """Refuse elements that are not fp8, and block sizes other than 32 along k."""
    for label, tensor in (("x1", x1), ("x2", x2)):
        if tensor.dtype not in _ELEMENTS:
            refuse(name, f"{tensor.dtype} {label} with mx scales")
    allowed = list(group_sizes or [1, 1, _BLOCK]) in ([1, 1, _BLOCK], [0, 0, _BLOCK], [0, 0, 0])
    require(name, allowed, f"group_sizes must be [1, 1, {_BLOCK}]")


def multiply_mx(
    name: str, x1: Tensor, x2: Tensor, x1_scale: Tensor | None, x2_scale: Tensor
) -> Tensor:
    """float32 product of [..., m, k] and [..., k, n] fp8 operands with their scales."""
    require(name, x1_scale is not None, "mx operands need the scale of x1")
    assert x1_scale is not None
    pairs = -(-x1.size(-1) // (2 * _BLOCK))
    rows, columns = x1.shape[-2], x2.shape[-1]
    require(name, x1.size(-1) == x2.size(-2), "x1 and x2 must agree about k")
    for label, scale in (("x1", x1_scale), ("x2", x2_scale)):
        require(name, scale.element_size() == 1, f"the scale of {label} must be 8 bits wide")
    left, right = (rows, pairs, 2), (pairs, columns, 2)
    require(name, x1_scale.shape[-3:] == left, f"the scale of x1 must end in {list(left)}")
    require(name, x2_scale.shape[-3:] == right, f"the scale of x2 must end in {list(right)}")
    scale1, scale2 = x1_scale.view(torch.uint8), x2_scale.view(torch.uint8)
    return multiply_in_fp32(restore_rows(x1, scale1), restore_columns(x2, scale2))


@kernel("npu_add_quant_matmul_", document="torch_npu-npu_add_quant_matmul_")
def add_quant_matmul_(
    input: Tensor,
    x1: Tensor,
    x2: Tensor,
    x2_scale: Tensor,
    *,
    x1_scale: Tensor | None = None,
    group_sizes: list[int] | None = None,
    x1_dtype: int | None = None,
    x2_dtype: int | None = None,
    x1_scale_dtype: int | None = None,
    x2_scale_dtype: int | None = None,
) -> Tensor:
    """Add x1^T @ x2 to `input` in place: a weight gradient over a micro-batch.

    Args:
        input: [m, n] fp32, written.
        x1: [k, m], float8_e4m3fn or float8_e5m2.
        x2: [k, n], likewise.
        x2_scale: [c, n, 2] e8m0.
        x1_scale: [c, m, 2] e8m0.
        group_sizes: None or [1, 1, 32].
        x1_dtype: names hifloat8, not simulated; so does `x2_dtype`.
        x1_scale_dtype: the id of e8m0; so is `x2_scale_dtype`.

    Returns:
        `input`.

    Raises:
        RuntimeError: a documented rule is broken.
        NotImplementedError: hifloat8 operands or fp32 scales.
    """
    name = "npu_add_quant_matmul_"
    if x1_dtype is not None or x2_dtype is not None:
        refuse(name, "hifloat8")
    if x1_scale_dtype != E8M0_ID or x2_scale_dtype != E8M0_ID:
        refuse(name, "scales other than e8m0")
    require_dtype(name, "input", input, (torch.float32,))
    require(name, x1.dim() == x2.dim() == 2, "x1 and x2 must be 2-D")
    check_operands(name, x1, x2, group_sizes)
    require(name, input.shape == (x1.size(1), x2.size(1)), "input must be [m, n]")
    rows_scale = None if x1_scale is None else x1_scale.transpose(0, 1)
    return input.add_(multiply_mx(name, x1.T, x2, rows_scale, x2_scale))


@kernel("npu_add_quant_matmul", document="torch_npu-npu_add_quant_matmul_")
def add_quant_matmul(
    input: Tensor,
    x1: Tensor,
    x2: Tensor,
    x2_scale: Tensor,
    *,
    x1_scale: Tensor | None = None,
    group_sizes: list[int] | None = None,
    x1_dtype: int | None = None,
    x2_dtype: int | None = None,
    x1_scale_dtype: int | None = None,
    x2_scale_dtype: int | None = None,
) -> Tensor:
    """`add_quant_matmul_` on a copy."""
    return add_quant_matmul_(
        input.clone(),
        x1,
        x2,
        x2_scale,
        x1_scale=x1_scale,
        group_sizes=group_sizes,
        x1_dtype=x1_dtype,
        x2_dtype=x2_dtype,
        x1_scale_dtype=x1_scale_dtype,
        x2_scale_dtype=x2_scale_dtype,
    )
