"""Lossless splitting of floats into mantissas and exponents: npu_hans_encode and npu_hans_decode.

CANN documents the sizes, the histogram and that decoding gives the input back bit for bit, but not
the layout inside the buffers. The layout here is this module's own: `mantissa` holds all but one
byte of each element, `fixed` and then `var` the exponent bytes, in order and not compressed, which
the documented sizes always have room for. Follows the torch_npu pages of both operators.
"""

import torch
from torch import Tensor

from ascend_sim.kernels.rules import FLOATS, require, require_dtype
from ascend_sim.registry import kernel

_MIN_ELEMENTS = 32768
_ELEMENTS_STEP = 64
_META_BYTES = 512
_BOUND_BYTES_PER_CORE = 8448
_VECTOR_CORES = 40  # of Ascend910B3
_BINS = 256
# Bits below the exponent byte: the 8 exponent bits, or for fp16 the high byte that holds its 5.
_SHIFT = {torch.bfloat16: 7, torch.float32: 23, torch.float16: 8}
_AS_INTEGER = {torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.float32: torch.int32}


def _as_bytes(name: str, label: str, tensor: Tensor) -> Tensor:
    require(name, tensor.is_contiguous(), f"{label} must be contiguous")
    return tensor.reshape(-1).view(torch.uint8)


def _check(name: str, floats: Tensor, pdf: Tensor, mantissa: Tensor) -> None:
    require_dtype(name, "the float tensor", floats, FLOATS)
    count = floats.numel()
    fits = count % _ELEMENTS_STEP == 0 and count >= _MIN_ELEMENTS
    require(name, fits, f"elements must be a multiple of {_ELEMENTS_STEP}, {_MIN_ELEMENTS} or more")
    require_dtype(name, "pdf", pdf, (torch.int32,))
    require(name, pdf.numel() == _BINS, f"pdf must hold {_BINS} counts")
    size = count * (floats.element_size() - 1)
    require(name, mantissa.nbytes == size, f"mantissa must have {size} bytes")


def _check_room(name: str, count: int, fixed: Tensor, var: Tensor, reshuff: bool) -> None:
    require(name, fixed.nbytes >= _META_BYTES, f"fixed must have at least {_META_BYTES} bytes")
    bound = count + count // _ELEMENTS_STEP + _BOUND_BYTES_PER_CORE * _VECTOR_CORES
    room = fixed.nbytes + (0 if reshuff else var.nbytes)
    where = "fixed" if reshuff else "fixed and var"
    require(name, room >= bound, f"{where} must have at least {bound} bytes")


def _split(floats: Tensor) -> tuple[Tensor, Tensor]:
    """Exponent byte and the remaining low bits of each element, as int64."""
    width, shift = 8 * floats.element_size(), _SHIFT[floats.dtype]
    bits = floats.contiguous().view(_AS_INTEGER[floats.dtype]).reshape(-1).long()
    bits = bits & ((1 << width) - 1)
    exponent = (bits >> shift) & 0xFF
    low = bits & ((1 << shift) - 1)
    high = bits >> (shift + 8)  # the sign, where it is not in the exponent byte
    return exponent, (high << shift) | low


def _join(exponent: Tensor, rest: Tensor, dtype: torch.dtype) -> Tensor:
    width, shift = torch.finfo(dtype).bits, _SHIFT[dtype]
    low, high = rest & ((1 << shift) - 1), rest >> shift
    bits = (high << (shift + 8)) | (exponent << shift) | low
    signed = torch.where(bits >= 1 << (width - 1), bits - (1 << width), bits)
    return signed.to(_AS_INTEGER[dtype]).view(dtype)


@kernel("npu_hans_encode.out", document="torch_npu-npu_hans_encode")
def hans_encode_out(
    input: Tensor, statistic: bool = False, reshuff: bool = False, *, out: list[Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Write mantissas and exponents of `input` into the buffers of `out`.

    Args:
        input: fp16, bf16 or fp32; a multiple of 64 elements, at least 32768.
        statistic: count the exponent bytes into pdf first.
        reshuff: keep all exponents in `fixed`, which must have the room.
        out: pdf int32 [256], mantissa, fixed, var; the sizes of the page hold.

    Returns:
        The tensors of `out`.

    Raises:
        RuntimeError: a documented rule is broken.
    """
    name = "npu_hans_encode"
    require(name, len(out) == 4, "out must be (pdf, mantissa, fixed, var)")
    pdf, mantissa, fixed, var = out
    _check(name, input, pdf, mantissa)
    _check_room(name, input.numel(), fixed, var, reshuff)
    exponent, rest = _split(input)
    if statistic:
        pdf.copy_(torch.bincount(exponent, minlength=_BINS).reshape(pdf.shape))
    planes = [(rest >> (8 * plane)) & 0xFF for plane in range(input.element_size() - 1)]
    _as_bytes(name, "mantissa", mantissa).copy_(torch.cat(planes))
    inside = min(fixed.nbytes, input.numel())
    _as_bytes(name, "fixed", fixed)[:inside].copy_(exponent[:inside])
    if inside < input.numel():
        _as_bytes(name, "var", var)[: input.numel() - inside].copy_(exponent[inside:])
    return pdf, mantissa, fixed, var


@kernel("npu_hans_decode.out", document="torch_npu-npu_hans_decode")
def hans_decode_out(
    mantissa: Tensor, fixed: Tensor, var: Tensor, pdf: Tensor, reshuff: bool = False, *, out: Tensor
) -> Tensor:
    """Write the floats that `hans_encode_out` took apart into `out`, bit for bit.

    Args:
        mantissa: as encoded; so are `fixed`, `var`, `pdf` and `reshuff`.
        out: dtype and number of elements of the encoded tensor.

    Raises:
        RuntimeError: a documented rule is broken.
    """
    name = "npu_hans_decode"
    _check(name, out, pdf, mantissa)
    count = out.numel()
    _check_room(name, count, fixed, var, reshuff)
    planes = _as_bytes(name, "mantissa", mantissa).long().reshape(-1, count)
    rest = torch.zeros(count, dtype=torch.int64)
    for plane, values in enumerate(planes):
        rest |= values << (8 * plane)
    inside = min(fixed.nbytes, count)
    parts = [_as_bytes(name, "fixed", fixed)[:inside]]
    if inside < count:
        parts.append(_as_bytes(name, "var", var)[: count - inside])
    return out.copy_(_join(torch.cat(parts).long(), rest, out.dtype).reshape(out.shape))
