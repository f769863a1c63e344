"""Quantisation to int8 and back.

Operators: npu_dynamic_quant, npu_dynamic_quant_asymmetric, npu_quantize, npu_anti_quant.
Arithmetic is float32, rounding is to the nearest even. Packed int4, fp8 and mx forms are refused.
Follows the torch_npu pages of the same names.
"""

import torch
from torch import Tensor

from ascend_sim.kernels.rules import (
    FLOATS,
    refuse,
    require,
    require_dtype,
    resolve_dtype,
)
from ascend_sim.registry import kernel

_HALVES = (torch.float16, torch.bfloat16)
_INT8_ID = 1


def _check_int8(name: str, dst_type: int | None, quant_mode: str, dst_type_max: float) -> None:
    if dst_type not in (None, _INT8_ID):
        refuse(name, f"dst_type {dst_type}")
    if quant_mode != "pertoken":
        refuse(name, f"quant_mode {quant_mode!r}")
    require(name, dst_type_max == 0.0, "dst_type_max must be 0 with int8")


def _smooth(name: str, x: Tensor, scales: Tensor | None, group_index: Tensor | None) -> Tensor:
    """Rows of x in float32, times their smoothing vector."""
    require(name, x.dim() > 1, "the input must have more than one dimension")
    require_dtype(name, "the input", x, _HALVES)
    rows = x.float().reshape(-1, x.size(-1))
    if scales is None:
        require(name, group_index is None, "group_index needs smooth_scales")
        return rows
    require(name, scales.dtype == x.dtype, "smooth_scales must have the dtype of the input")
    require(name, scales.size(-1) == x.size(-1), "smooth_scales must have the input's last size")
    if group_index is None:
        require(name, scales.dim() == 1, "smooth_scales must be 1-D without group_index")
        return rows * scales.float()
    require_dtype(name, "group_index", group_index, (torch.int32,))
    require(name, scales.dim() == 2, "smooth_scales must be 2-D with group_index")
    require(name, group_index.shape == scales.shape[:1], "one end per row of smooth_scales")
    ends = group_index.long()
    require(name, bool((ends.diff() >= 0).all()), "group_index must not decrease")
    require(name, int(ends[-1]) == rows.size(0), "group_index must end at the number of rows")
    groups = torch.searchsorted(ends, torch.arange(rows.size(0)), right=True)
    return rows * scales.float()[groups]


def _divide(rows: Tensor, scale: Tensor) -> Tensor:
    """rows / scale, and zero in a row whose scale is zero (all its values are equal)."""
    return torch.where(scale == 0, 0.0, rows / scale)


def _to_int8(values: Tensor, shape: torch.Size) -> Tensor:
    return values.round().clamp(-128, 127).to(torch.int8).reshape(shape)


@kernel("npu_dynamic_quant", document="torch_npu-npu_dynamic_quant")
def dynamic_quant(
    input: Tensor,
    *,
    smooth_scales: Tensor | None = None,
    group_index: Tensor | None = None,
    dst_type: int | None = None,
    quant_mode: str = "pertoken",
    dst_type_max: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Quantise each row symmetrically: scale = max|x| / 127, y = round(x / scale).

    Args:
        input: [..., h], fp16 or bf16.
        smooth_scales: [h], or [groups, h] with `group_index`; multiplies x first.
        group_index: int32 [groups], cumulative ends over the rows.
        dst_type: None or int8.
        quant_mode: only "pertoken".
        dst_type_max: only 0.

    Returns:
        int8 of the input's shape, fp32 [...]. A row of zeros gives zeros and scale zero.

    Raises:
        RuntimeError: a documented rule is broken.
        NotImplementedError: another dst_type or quant_mode.
    """
    name = "npu_dynamic_quant"
    _check_int8(name, dst_type, quant_mode, dst_type_max)
    rows = _smooth(name, input, smooth_scales, group_index)
    scale = rows.abs().amax(1, keepdim=True) / 127
    return _to_int8(_divide(rows, scale), input.shape), scale.reshape(input.shape[:-1])


@kernel("npu_dynamic_quant_asymmetric", document="torch_npu-npu_dynamic_quant_asymmetric")
def dynamic_quant_asymmetric(
    input: Tensor,
    *,
    smooth_scales: Tensor | None = None,
    group_index: Tensor | None = None,
    dst_type: int | None = None,
    quant_mode: str = "pertoken",
    dst_type_max: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Quantise each row to the whole of int8: y = round(x / scale + offset).

    scale = (max - min) / 255 and offset = 127 - max / scale.

    Args:
        The arguments: as for `dynamic_quant`.

    Returns:
        int8 of the input's shape, fp32 scale and offset [...].

    Raises:
        RuntimeError: a documented rule is broken.
        NotImplementedError: another dst_type or quant_mode, or a row of equal values, for which
            the formula divides by zero.
    """
    name = "npu_dynamic_quant_asymmetric"
    _check_int8(name, dst_type, quant_mode, dst_type_max)
    rows = _smooth(name, input, smooth_scales, group_index)
    high, low = rows.amax(1, keepdim=True), rows.amin(1, keepdim=True)
    scale = (high - low) / 255
    if bool((scale == 0).any()):
        refuse(name, "a row of equal values (scale 0)")
    offset = 127 - high / scale
    shape = input.shape[:-1]
    y = _to_int8(rows / scale + offset, input.shape)
    return y, scale.reshape(shape), offset.reshape(shape)


def _along_axis(name: str, values: Tensor, input: Tensor, axis: int) -> Tensor:
    """Reshape 1-D `values` so that they broadcast along `axis`; others must fit as they are."""
    if values.dim() == 1:
        fits = values.numel() in (1, input.size(axis))
        require(name, fits, "scales and zero_points must have 1 value or one per element of axis")
        shape = [1] * input.dim()
        shape[axis] = values.numel()
        return values.float().reshape(shape)
    require(name, values.dim() == input.dim(), "scales must be 1-D or have the input's dimensions")
    return values.float()


@kernel("npu_quantize", document="torch_npu-npu_quantize")
def quantize(
    input: Tensor,
    scales: Tensor,
    zero_points: Tensor | None,
    dtype: int,
    axis: int = 1,
    div_mode: bool = True,
) -> Tensor:
    """Round input / scales (or, not `div_mode`, input · scales) + zero_points to an integer type.

    Args:
        input: fp16, bf16 or fp32.
        scales: 1-D along the axis, or of the input's dimensions.
        zero_points: like scales.
        dtype: id of qint8, quint8 or int32 with `div_mode`, of qint8 without.
        axis: with `div_mode` any; without, -2 for the last but one, anything greater for the last.
        div_mode: divide by the scales.

    Returns:
        int8, uint8 or int32 of the input's shape.

    Raises:
        RuntimeError: a documented rule is broken.
        NotImplementedError: packed int4.
    """
    name = "npu_quantize"
    require_dtype(name, "input", input, FLOATS)
    types = {12: torch.int8, 13: torch.uint8, 3: torch.int32, 1: torch.int8, 0: torch.uint8}
    if dtype == 16:
        refuse(name, "quint4x2")
    require(name, dtype in types, f"dtype must be qint8, quint8 or int32, not id {dtype}")
    target = types[dtype]
    if not div_mode:
        require(name, target == torch.int8, "div_mode False needs qint8")
        require(name, axis >= -2, "axis must be at least -2")
        axis = -2 if axis == -2 else -1
    factor = _along_axis(name, scales, input, axis)
    values = input.float() / factor if div_mode else input.float() * factor
    if zero_points is not None:
        values = values + _along_axis(name, zero_points, input, axis)
    limits = torch.iinfo(target)
    # Float32 cannot hold int32's limits; double can.
    return values.double().round().clamp(limits.min, limits.max).to(target)


@kernel("npu_anti_quant", document="torch_npu-npu_anti_quant")
def anti_quant(
    x: Tensor,
    scale: Tensor,
    *,
    offset: Tensor | None = None,
    dst_dtype: int | None = None,
    src_dtype: int | None = None,
) -> Tensor:
    """(x + offset) · scale in fp16 or bf16.

    Args:
        x: int8, up to 8 dimensions.
        scale: fp32 or bf16, [1] or one per last element.
        offset: dtype and shape of scale.
        dst_dtype: id of fp16 (default) or bf16.
        src_dtype: None or int8.

    Returns:
        The shape of x.

    Raises:
        RuntimeError: a documented rule is broken.
        NotImplementedError: packed int4.
    """
    name = "npu_anti_quant"
    if x.dtype == torch.int32 or src_dtype not in (None, _INT8_ID):
        refuse(name, "packed int4")
    require_dtype(name, "x", x, (torch.int8,))
    require_dtype(name, "scale", scale, (torch.float32, torch.bfloat16))
    require(name, scale.dim() == 1 and scale.numel() in (1, x.size(-1)), "scale must be [1] or [n]")
    target = resolve_dtype(name, dst_dtype, torch.float16)
    require(name, target in _HALVES, "dst_dtype must be float16 or bfloat16")
    values = x.float()
    if offset is not None:
        require(name, offset.dtype == scale.dtype, "offset must have the dtype of scale")
        require(name, offset.shape == scale.shape, "offset must have the shape of scale")
        values = values + offset.float()
    return (values * scale.float()).to(target)
