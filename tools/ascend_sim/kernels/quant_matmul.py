"""Products with int8 matrices: npu_quant_matmul (both int8) and npu_weight_quant_batchmatmul.

Integer products are exact; scaling is float32 and is cast once. fp8 operands are taken with mx
scales (see `mx_matmul`); packed int4 and fp4 operands and packed int64 scales are refused. Follows
the torch_npu pages of both operators.

Dims: m, k, n as in [m, k] @ [k, n].
"""

import torch
from torch import Tensor

from ascend_sim.kernels.mx_matmul import E8M0_ID, check_operands, multiply_mx
from ascend_sim.kernels.rules import (
    multiply_in_fp32,
    refuse,
    require,
    require_dtype,
    resolve_dtype,
)
from ascend_sim.registry import kernel

_HALVES = (torch.float16, torch.bfloat16)


@kernel("npu_quant_matmul", document="torch_npu-npu_quant_matmul")
def quant_matmul(
    x1: Tensor,
    x2: Tensor,
    scale: Tensor,
    *,
    offset: Tensor | None = None,
    pertoken_scale: Tensor | None = None,
    bias: Tensor | None = None,
    output_dtype: int | None = None,
    x1_dtype: int | None = None,
    x2_dtype: int | None = None,
    pertoken_scale_dtype: int | None = None,
    scale_dtype: int | None = None,
    group_sizes: list[int] | None = None,
    y_scale: Tensor | None = None,
) -> Tensor:
    """(x1 @ x2 + integer bias) · scale · pertoken_scale + float bias, or + offset for int8 output.

    Args:
        x1: [..., m, k] int8.
        x2: [..., k, n] int8.
        scale: fp32 or bf16, [1] or [n].
        offset: fp32 [1] or [n], with int8 output.
        pertoken_scale: fp32 [m], with fp16 or bf16 output.
        bias: int32 (before scaling), fp16, bf16 or fp32 (after it).
        output_dtype: id of int8 (default), fp16, or bf16.
        scale_dtype: the id of e8m0, with `pertoken_scale_dtype`, for mx: x1 [..., m, k] and
            x2 [..., k, n] fp8, pertoken_scale [..., m, c, 2], scale [..., c, n, 2] of uint8 with
            c = ceil(k / 64), fp32 bias, fp16, bf16 or fp32 output.
        group_sizes: with mx, None or [1, 1, 32].
        The other arguments: further 8-bit and 4-bit modes, not simulated.

    Returns:
        [..., m, n].

    Raises:
        RuntimeError: a documented rule is broken.
        NotImplementedError: a mode without a reference computation.
    """
    name = "npu_quant_matmul"
    if scale_dtype == E8M0_ID and pertoken_scale_dtype == E8M0_ID:
        if (
            x1_dtype is not None
            or x2_dtype is not None
            or offset is not None
            or y_scale is not None
        ):
            refuse(name, "mx scales with fp4, an offset or y_scale")
        return _multiply_mx(name, x1, x2, scale, pertoken_scale, bias, output_dtype, group_sizes)
    ids = (x1_dtype, x2_dtype, pertoken_scale_dtype, scale_dtype)
    if any(dtype is not None for dtype in ids) or group_sizes or y_scale is not None:
        refuse(name, "an fp8 or mx mode")
    if x1.dtype != torch.int8 or x2.dtype != torch.int8:
        refuse(name, f"{x1.dtype} with {x2.dtype}")
    if scale.dtype == torch.int64:
        refuse(name, "a packed int64 scale")
    require_dtype(name, "scale", scale, (torch.float32, torch.bfloat16))
    require(name, 2 <= x1.dim() <= 6 and 2 <= x2.dim() <= 6, "x1 and x2 must be 2-D to 6-D")
    require(name, x1.size(-1) == x2.size(-2), "x1 and x2 must agree about k")
    require(name, max(x1.size(-1), x2.size(-1)) <= 65535, "the last sizes must be at most 65535")
    columns = x2.size(-1)
    require(name, scale.shape in ((1,), (columns,)), "scale must be [1] or [n]")
    dtype = resolve_dtype(name, output_dtype, torch.int8)
    if dtype not in (torch.int8, *_HALVES):
        refuse(name, f"output {dtype}")
    require(name, offset is None or dtype == torch.int8, "offset needs int8 output")
    require(name, pertoken_scale is None or dtype in _HALVES, "pertoken_scale needs float output")

    # float64 holds every sum of int8 products exactly, and CPUs multiply it faster than integers.
    product = torch.matmul(x1.double(), x2.double())
    integer_bias = bias is not None and bias.dtype == torch.int32
    if bias is not None and integer_bias:
        product = product + bias
    values = product.float() * scale.float()
    if pertoken_scale is not None:
        require_dtype(name, "pertoken_scale", pertoken_scale, (torch.float32,))
        require(name, pertoken_scale.shape == (x1.size(-2),), "pertoken_scale must be [m]")
        values = values * pertoken_scale.unsqueeze(1)
    if bias is not None and not integer_bias:
        values = values + bias.float()
    if dtype != torch.int8:
        return values.to(dtype)
    if offset is not None:
        values = values + offset
    return values.round().clamp(-128, 127).to(torch.int8)


def _multiply_mx(
    name: str,
    x1: Tensor,
    x2: Tensor,
    scale: Tensor,
    pertoken_scale: Tensor | None,
    bias: Tensor | None,
    output_dtype: int | None,
    group_sizes: list[int] | None,
) -> Tensor:
    check_operands(name, x1, x2, group_sizes)
    dtype = resolve_dtype(name, output_dtype, torch.int8)
    allowed = (*_HALVES, torch.float32)
    require(name, dtype in allowed, "output_dtype must be float16, bfloat16 or float32 with mx")
    product = multiply_mx(name, x1, x2, pertoken_scale, scale)
    if bias is not None:
        require_dtype(name, "bias with mx", bias, (torch.float32,))
        product = product + bias
    return product.to(dtype)


@kernel("npu_weight_quant_batchmatmul", document="torch_npu-npu_weight_quant_batchmatmul")
def weight_quant_batchmatmul(
    x: Tensor,
    weight: Tensor,
    antiquant_scale: Tensor,
    antiquant_offset: Tensor | None = None,
    quant_scale: Tensor | None = None,
    quant_offset: Tensor | None = None,
    bias: Tensor | None = None,
    antiquant_group_size: int = 0,
    inner_precise: int = 0,
    weight_dtype: int | None = None,
) -> Tensor:
    """x @ ((weight + antiquant_offset) · antiquant_scale) + bias with an int8 weight.

    Args:
        x: [m, k], fp16 or bf16.
        weight: [k, n] int8.
        antiquant_scale: dtype of x; [1], [n], [1, n] or, in groups along k, [ceil(k / g), n].
        antiquant_offset: like antiquant_scale.
        quant_scale: output quantisation, not simulated; so is `quant_offset`.
        bias: [n] or [1, n]; fp16 with fp16, fp32 with bf16.
        antiquant_group_size: g, a multiple of 32 in [32, k - 1], or 0 for no groups.
        inner_precise: a speed hint.
        weight_dtype: not simulated.

    Returns:
        [m, n] in the dtype of x.

    Raises:
        RuntimeError: a documented rule is broken.
        NotImplementedError: packed int4 weights or a quantised output.
    """
    name = "npu_weight_quant_batchmatmul"
    if weight.dtype != torch.int8 or weight_dtype is not None:
        refuse(name, f"a {weight.dtype} weight")
    if quant_scale is not None or quant_offset is not None:
        refuse(name, "a quantised output")
    require_dtype(name, "x", x, _HALVES)
    require(name, x.dim() == weight.dim() == 2, "x and weight must be 2-D")
    require(name, x.size(1) == weight.size(0), "x and weight must agree about k")
    require(name, antiquant_scale.dtype == x.dtype, "antiquant_scale must have the dtype of x")
    restored = weight.float()
    for operand, combine in ((antiquant_offset, torch.add), (antiquant_scale, torch.mul)):
        if operand is not None:
            restored = combine(restored, _spread(name, operand, weight, antiquant_group_size))
    product = multiply_in_fp32(x, restored)
    if bias is not None:
        expected = torch.float16 if x.dtype == torch.float16 else torch.float32
        require_dtype(name, f"bias with {x.dtype} x", bias, (expected,))
        product = product + bias.float()
    return product.to(x.dtype)


def _spread(name: str, operand: Tensor, weight: Tensor, group_size: int) -> Tensor:
    """Give a per-tensor, per-column or per-group operand the shape of the weight."""
    depth, columns = weight.shape
    if group_size == 0:
        shapes = ((1,), (columns,), (1, columns))
        require(name, operand.shape in shapes, "antiquant operands must be [1], [n] or [1, n]")
        return operand.float().expand(depth, columns)
    fits = group_size % 32 == 0 and 32 <= group_size <= depth - 1
    require(name, fits, "antiquant_group_size must be a multiple of 32 in [32, k - 1]")
    groups = -(-depth // group_size)
    require(name, operand.shape == (groups, columns), "antiquant operands must be [ceil(k / g), n]")
    return operand.float().repeat_interleave(group_size, 0)[:depth]
