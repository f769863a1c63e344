"""Quantisation to MX formats: blocks of 32 values that share a power of two as their scale.

Operators: npu_dynamic_mx_quant, npu_dynamic_mx_quant_with_dual_axis, for fp8 elements. The scales
are e8m0 exponents in uint8, in pairs of blocks: the axis holds half the (even) number of blocks,
and a last dimension of 2 the two of each pair. Elements are rounded to the nearest even and clamped
to the greatest finite value, as the OCP Microscaling specification has it. Packed fp4 elements are
refused. Follows the torch_npu pages of both operators.
"""

import torch
from torch import Tensor
from torch.nn import functional

from ascend_sim.kernels.rules import FLOATS, refuse, require, require_dtype
from ascend_sim.registry import kernel

# Element type by dtype id, and the exponent of its greatest power of two.
_ELEMENTS = {
    23: torch.float8_e5m2,
    291: torch.float8_e5m2,
    24: torch.float8_e4m3fn,
    292: torch.float8_e4m3fn,
}
_EMAX = {torch.float8_e5m2: 15, torch.float8_e4m3fn: 8}
_EXPONENT_BIAS = 127
_NAN_SCALE = 255


def _element_type(name: str, dst_type: int) -> torch.dtype:
    if dst_type not in _ELEMENTS:
        refuse(name, f"dst_type {dst_type} (packed fp4)")
    return _ELEMENTS[dst_type]


def _choose_exponents(amax: Tensor, element: torch.dtype, scale_alg: int) -> Tensor:
    """Exponents of the scales: floor(log2 amax) - emax, or ceil(log2(amax / greatest))."""
    if scale_alg == 0:
        # frexp gives a mantissa in [0.5, 1), so its exponent is floor(log2) + 1.
        return torch.frexp(amax).exponent - 1 - _EMAX[element]
    mantissa, exponent = torch.frexp(amax / torch.finfo(element).max)
    return torch.where(mantissa == 0.5, exponent - 1, exponent)


def _quantise_blocks(
    blocks: Tensor, element: torch.dtype, scale_alg: int, low_bound: float
) -> tuple[Tensor, Tensor]:
    """Elements of [..., size] float32 blocks and the scale byte of each block.

    A block of zeros has scale byte 0, one with an infinity or NaN the NaN byte.
    """
    amax = blocks.abs().amax(-1)
    if scale_alg == 1 and low_bound > 0:
        amax = torch.where(amax.isnan(), amax, amax.clamp(min=low_bound))
    finite = amax.isfinite()
    safe = torch.where(finite & (amax > 0), amax, 1.0)
    exponents = _choose_exponents(safe, element, scale_alg).clamp(-_EXPONENT_BIAS, _EXPONENT_BIAS)
    scaled = torch.ldexp(blocks, -exponents.unsqueeze(-1))
    limit = torch.finfo(element).max
    values = torch.where(finite.unsqueeze(-1), scaled.clamp(-limit, limit), torch.nan)
    scales = torch.where(amax == 0, 0, exponents + _EXPONENT_BIAS)
    return values.to(element), torch.where(finite, scales, _NAN_SCALE).to(torch.uint8)


def _quantise_axis(
    input: Tensor, axis: int, size: int, element: torch.dtype, scale_alg: int, low_bound: float
) -> tuple[Tensor, Tensor]:
    """Quantise blocks of `size` along `axis`; the last block is filled up with zeros."""
    moved = input.float().movedim(axis, -1)
    length = moved.size(-1)
    # An even number of blocks: an odd last one gets a partner of scale 0.
    padded = functional.pad(moved, (0, -length % (2 * size)))
    blocks = padded.reshape(*moved.shape[:-1], -1, size)
    values, scales = _quantise_blocks(blocks, element, scale_alg, low_bound)
    count = -(-length // size)
    scales[..., count:] = 0
    y = values.reshape(padded.shape)[..., :length].movedim(-1, axis).contiguous()
    pairs = scales.reshape(*moved.shape[:-1], -1, 2)
    return y, pairs.movedim(-2, axis).contiguous()


@kernel("npu_dynamic_mx_quant", document="torch_npu-npu_dynamic_mx_quant")
def dynamic_mx_quant(
    input: Tensor,
    *,
    axis: int = -1,
    round_mode: str = "rint",
    dst_type: int = 296,
    block_size: int = 32,
    scale_alg: int | None = 0,
    dst_type_max: float = 0.0,
    max_low_bound: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Quantise blocks along one axis: y = cast(x / 2^e).

    Args:
        input: 1-D to 7-D, fp16, bf16 or fp32.
        axis: in [-dims, dims).
        round_mode: only "rint" for fp8.
        dst_type: id of float8_e5m2 or float8_e4m3fn.
        block_size: a multiple of 32 up to 1024; 32 with fp32 input.
        scale_alg: 0, e = floor(log2 max|x|) - emax; 1, e = ceil(log2(max|x| / max of the type)).
        dst_type_max: only 0 for fp8.
        max_low_bound: with scale_alg 1, the least max|x| of a block.

    Returns:
        fp8 of the input's shape; uint8, the input's shape with ceil(ceil(size / block_size) / 2)
        along the axis, and 2 behind.

    Raises:
        RuntimeError: a documented rule is broken.
        NotImplementedError: fp4 elements.
    """
    name = "npu_dynamic_mx_quant"
    dims = input.dim()
    require_dtype(name, "input", input, FLOATS)
    require(name, 1 <= dims <= 7, f"input must be 1-D to 7-D, not {dims}-D")
    require(name, -dims <= axis < dims, f"axis {axis} is outside the dimensions of input")
    fits = block_size % 32 == 0 and 0 < block_size <= 1024
    require(name, fits, "block_size must be a multiple of 32 up to 1024")
    if input.dtype == torch.float32:
        require(name, block_size == 32, "block_size must be 32 with float32 input")
        require(name, input.size(axis) >= 32, "float32 input needs at least 32 along the axis")
    element = _element_type(name, dst_type)
    _check_fp8_options(name, round_mode, scale_alg, dst_type_max)
    require(name, max_low_bound >= 0, "max_low_bound must not be negative")
    require(name, scale_alg == 1 or max_low_bound == 0, "max_low_bound needs scale_alg 1")
    return _quantise_axis(input, axis % dims, block_size, element, scale_alg or 0, max_low_bound)


def _check_fp8_options(
    name: str, round_mode: str, scale_alg: int | None, dst_type_max: float | None
) -> None:
    require(name, round_mode == "rint", 'round_mode must be "rint" for fp8')
    require(name, scale_alg in (None, 0, 1), "scale_alg must be 0 or 1 for fp8")
    require(name, not dst_type_max, "dst_type_max must be 0 for fp8")


@kernel(
    "npu_dynamic_mx_quant_with_dual_axis",
    document="torch_npu-npu_dynamic_mx_quant_with_dual_axis",
)
def dynamic_mx_quant_with_dual_axis(
    input: Tensor,
    *,
    round_mode: str = "rint",
    dst_type: int = 296,
    scale_alg: int = 0,
    dst_type_max: float | None = 0.0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Quantise blocks of 32 along the last axis, and again along the last but one.

    Args:
        input: 2-D to 7-D, fp16 or bf16.
        The other arguments: as for `dynamic_mx_quant`.

    Returns:
        Elements and scales of the last axis, elements and scales of the last but one.

    Raises:
        RuntimeError: a documented rule is broken.
        NotImplementedError: fp4 elements.
    """
    name = "npu_dynamic_mx_quant_with_dual_axis"
    require_dtype(name, "input", input, (torch.float16, torch.bfloat16))
    dims = input.dim()
    require(name, 2 <= dims <= 7, f"input must be 2-D to 7-D, not {dims}-D")
    element = _element_type(name, dst_type)
    _check_fp8_options(name, round_mode, scale_alg, dst_type_max)
    rows, row_scales = _quantise_axis(input, dims - 1, 32, element, scale_alg, 0.0)
    columns, column_scales = _quantise_axis(input, dims - 2, 32, element, scale_alg, 0.0)
    return rows, row_scales, columns, column_scales
