"""The dropout family: with bit masks, with byte masks, and fused behind add and softmax.

    y = x * keep / (1 - p)

Which elements are kept comes from `rng.keep_mask` of a (seed, offset): repeatable, with the right
probability, but not the bits of a real chip.
"""

import torch
from torch import Tensor

from ascend_sim import rng
from ascend_sim.kernels.checks import require_float, require_same_dtype, require_same_shape
from ascend_sim.kernels.dropout_mask import (
    draw_seed,
    pack_bits,
    round_probability,
    unpack_bits,
)
from ascend_sim.kernels.rules import require
from ascend_sim.registry import kernel


def _check_probability(operator: str, p: float) -> None:
    require(operator, 0.0 <= p <= 1.0, f"the dropout probability must be in [0, 1], not {p}")


def _draw_keep(shape: torch.Size, p: float) -> Tensor:
    """A fresh mask from the device's generator, bool of `shape`."""
    return rng.keep_mask(shape, round_probability(1.0 - p), *draw_seed())


def _apply(x: Tensor, keep: Tensor, p: float) -> Tensor:
    """x * keep / (1 - p), zero everywhere for p = 1."""
    kept = x.float() / (1.0 - p) if p < 1.0 else torch.zeros_like(x, dtype=torch.float32)
    return kept.masked_fill(~keep.view(x.shape), 0.0).to(x.dtype)


def _apply_bits(operator: str, x: Tensor, mask: Tensor, p: float) -> Tensor:
    _check_probability(operator, p)
    require_float(operator, input=x)
    require(operator, mask.dtype == torch.uint8, f"mask must be uint8, not {mask.dtype}")
    length = -(-x.numel() // 128) * 16
    rule = f"the bit mask of {x.numel()} elements has {length} bytes, not {mask.numel()}"
    require(operator, mask.numel() >= length, rule)
    return _apply(x, unpack_bits(mask, x.numel()), p)


@kernel("_npu_dropout", document="torch_npu-_npu_dropout.md")
def npu_dropout(input: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """(dropped input, bit mask) with a mask from the device's generator."""
    _check_probability("_npu_dropout", p)
    require_float("_npu_dropout", input=input)
    keep = _draw_keep(input.shape, p)
    return _apply(input, keep, p), pack_bits(keep)


@kernel("npu_dropout_do_mask", document="op_plugin_functions.yaml: npu_dropout_do_mask")
def npu_dropout_do_mask(input: Tensor, mask: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """(dropped input, the mask itself) with a given bit mask."""
    return _apply_bits("npu_dropout_do_mask", input, mask, p), mask


@kernel("npu_dropout_backward", document="torch_npu-_npu_dropout.md")
def npu_dropout_backward(grad_output: Tensor, mask: Tensor, p: float) -> Tensor:
    """The gradient of the bit-mask operators: the same mask and factor on the gradient."""
    return _apply_bits("npu_dropout_backward", grad_output, mask, p)


@kernel("_npu_dropout_gen_mask.Tensor", document="at_npu-native-npu_dropout_gen_mask.md")
def npu_dropout_gen_mask(
    input: Tensor,
    size: list[int],
    p: float,
    seed: int,
    offset: int,
    *,
    parallel: bool | None = True,
    sync: bool | None = None,
) -> Tensor:
    """The bit mask of (seed, offset) for a tensor of `size`; `input` only names the device."""
    operator = "_npu_dropout_gen_mask"
    _check_probability(operator, p)
    numel = 1
    for length in size:
        numel *= length
    return pack_bits(rng.keep_mask((numel,), round_probability(1.0 - p), seed, offset))


@kernel("_dropout_with_byte_mask", document="torch_npu-contrib-function-dropout_with_byte_mask.md")
def dropout_and_byte_mask(input: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """(dropped input, byte mask shaped like the input)."""
    operator = "_dropout_with_byte_mask"
    _check_probability(operator, p)
    require_float(operator, input=input)
    keep = _draw_keep(input.shape, p)
    return _apply(input, keep, p), keep.to(torch.uint8)


@kernel(
    "_dropout_with_byte_mask_backward",
    document="torch_npu-contrib-function-dropout_with_byte_mask.md",
)
def dropout_with_byte_mask_backward(grad_output: Tensor, mask: Tensor, p: float) -> Tensor:
    """The gradient of `_dropout_with_byte_mask`."""
    operator = "_dropout_with_byte_mask_backward"
    _check_probability(operator, p)
    require_float(operator, grad_output=grad_output)
    require(operator, mask.dtype == torch.uint8, f"mask must be uint8, not {mask.dtype}")
    require_same_shape(operator, grad_output=grad_output, mask=mask)
    return _apply(grad_output, mask.bool(), p)


@kernel("dropout_with_byte_mask", document="torch_npu-contrib-function-dropout_with_byte_mask.md")
def dropout_with_byte_mask(input: Tensor, p: float, train: bool) -> Tensor:
    """Dropout without its mask; the input itself when not training or p is 0."""
    if p == 0 or not train or input.numel() == 0:
        return input.clone()
    return dropout_and_byte_mask(input, p)[0]


_SIDES = (128, 256, 384, 512)


@kernel("npu_dropout_with_add_softmax", document="torch_npu-npu_dropout_with_add_softmax.md")
def npu_dropout_with_add_softmax(
    input: Tensor, x1: Tensor, alpha: float, prob: float, dim: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (byte mask [numel], softmax(x1 + alpha * input), the softmax after dropout).

    Args:
        input: [N, C, H, W] with H and W 128, 256, 384 or 512, and N * C a multiple of 32.
        x1: like `input`.
        alpha: factor of `input`.
        prob: probability to drop.
        dim: -1.
    """
    operator = "npu_dropout_with_add_softmax"
    require_float(operator, input=input)
    require_same_dtype(operator, input=input, x1=x1)
    require_same_shape(operator, input=input, x1=x1)
    _check_probability(operator, prob)
    require(operator, input.dim() == 4, f"input must have 4 dims, not {input.dim()}")
    require(operator, dim == -1, f"dim must be -1, not {dim}")
    batch, channels, height, width = input.shape
    rule = f"H and W must be in {_SIDES}, not {height} and {width}"
    require(operator, height in _SIDES and width in _SIDES, rule)
    rule = f"N * C = {batch * channels} must be a multiple of 32"
    require(operator, batch * channels % 32 == 0, rule)
    softmax = torch.softmax(x1.float() + float(alpha) * input.float(), dim).to(x1.dtype)
    keep = _draw_keep(input.shape, prob)
    return keep.flatten().to(torch.uint8), softmax, _apply(softmax, keep, prob)


@kernel(
    "npu_dropout_with_add_softmax_backward",
    document="torch_npu-npu_dropout_with_add_softmax.md",
)
def npu_dropout_with_add_softmax_backward(
    grad: Tensor, mask: Tensor, softmax_out: Tensor, alpha: float, prob: float, dim: int
) -> tuple[Tensor, Tensor]:
    """(gradient of `input`, `grad` itself for `x1`).

    The second is what the device returns, although d/dx1 is the first divided by alpha: x1 is meant
    to be a mask. Do not train through x1.
    """
    operator = "npu_dropout_with_add_softmax_backward"
    require_same_shape(operator, grad=grad, softmax_out=softmax_out)
    rule = f"the byte mask must have {grad.numel()} elements, not {mask.numel()}"
    require(operator, mask.numel() == grad.numel(), rule)
    y = softmax_out.float()
    dy = _apply(grad.float(), mask.bool(), prob)
    dx = y * (dy - (dy * y).sum(dim, keepdim=True))
    return (float(alpha) * dx).to(softmax_out.dtype), grad.clone()
