"""Rotary position embedding: npu_rotary_mul, its gradient, npu_apply_rotary_pos_emb.

    y = x * cos + rotate(x) * sin

Two rotations are documented for the training chips. With D the head width:

    half        rotate(x) = cat(-x[D/2:], x[:D/2])      pairs (i, i + D/2)
    interleave  rotate(x)[2i] = -x[2i+1], [2i+1] = x[2i]  pairs (2i, 2i + 1)

cos and sin cover the full D. "quarter" exists on Ascend 950 only and is refused, as a 910 does.
"""

import math

import torch
from torch import Tensor

from ascend_sim.kernels.checks import (
    refuse,
    require_float,
    require_same_dtype,
    require_same_shape,
)
from ascend_sim.kernels.rules import require
from ascend_sim.registry import kernel

_MAX_HEAD_WIDTH = 896
_MAX_BATCH_OR_HEADS = 1000


def _rotate(operator: str, x: Tensor, mode: str) -> Tensor:
    """rotate(x) over the last dim."""
    if mode == "half":
        first, second = x.chunk(2, -1)
        return torch.cat([-second, first], -1)
    if mode == "interleave":
        return torch.stack([-x[..., 1::2], x[..., 0::2]], -1).flatten(-2)
    refuse(operator, f"rotary_mode must be 'half' or 'interleave', not {mode!r}")


def _rotate_back(operator: str, x: Tensor, mode: str) -> Tensor:
    """The transpose of `_rotate`: rotations by a quarter turn, so its negative."""
    return -_rotate(operator, x, mode)


def _check_rotary(operator: str, x: Tensor, cos: Tensor, sin: Tensor, mode: str) -> None:
    """The documented limits of npu_rotary_mul on Atlas A2 and A3."""
    require_float(operator, input=x, r1=cos, r2=sin)
    require(operator, mode in ("half", "interleave"), f"rotary_mode {mode!r} is not supported")
    require(operator, x.dim() == 4 and cos.dim() == 4, "input, r1 and r2 must have 4 dims")
    require_same_shape(operator, r1=cos, r2=sin)
    width = x.shape[-1]
    require(
        operator,
        width % 2 == 0 and width < _MAX_HEAD_WIDTH,
        f"head width {width} must be even and below {_MAX_HEAD_WIDTH}",
    )
    require(operator, cos.shape[-1] == width, f"r1 must cover the full head width {width}")
    outer, inner = tuple(x.shape[:3]), tuple(cos.shape[:3])
    fits = all(c in (1, s) for s, c in zip(outer, inner, strict=True))
    require(operator, fits, f"r1 {inner} does not broadcast over the input {outer}")
    _check_broadcast_form(operator, outer, inner, mode)


def _check_broadcast_form(
    operator: str, outer: tuple[int, ...], inner: tuple[int, ...], mode: str
) -> None:
    """interleave takes the sequence-only form; half also [B,S] and full forms."""
    broadcast = [d for d in range(3) if inner[d] == 1 and outer[d] != 1]
    if mode == "interleave":
        kept = [d for d in range(3) if inner[d] != 1]
        rule = "interleave takes r1 of shape 11SD, 1S1D or S11D only"
        require(operator, len(kept) <= 1, rule)
        product = math.prod(size for d, size in enumerate(outer) if d not in kept)
        rule = f"B * N = {product} must be below {_MAX_BATCH_OR_HEADS} for interleave"
        require(operator, product < _MAX_BATCH_OR_HEADS, rule)
        return
    for d in broadcast:
        rule = f"batch and head counts must be below {_MAX_BATCH_OR_HEADS}, found {outer[d]}"
        require(operator, outer[d] < _MAX_BATCH_OR_HEADS, rule)


@kernel("npu_rotary_mul", document="torch_npu-npu_rotary_mul.md")
def npu_rotary_mul(
    input: Tensor,
    r1: Tensor,
    r2: Tensor,
    rotary_mode: str = "half",
    rotate: Tensor | None = None,
) -> Tensor:
    """x * r1 + rotate(x) * r2.

    Args:
        input: 4 dims, BNSD, BSND or SBND; D even and below 896.
        r1: cos, 4 dims, the sequence dim and D full, the others 1 (half: also full).
            Cast to the input dtype.
        r2: sin, like `r1`.
        rotary_mode: "half" or "interleave"; not used when `rotate` is given.
        rotate: [D, D]; when given, rotate(x) is `input @ rotate`. It gets no gradient, and the
            backward operator does not see it: gradients are right only where it is the matrix
            of `rotary_mode`.

    Returns:
        Shape and dtype of `input`.
    """
    operator = "npu_rotary_mul"
    _check_rotary(operator, input, r1, r2, rotary_mode)
    x = input.float()
    if rotate is None:
        turned = _rotate(operator, x, rotary_mode)
    else:
        width = input.shape[-1]
        require_float(operator, rotate=rotate)
        square = tuple(rotate.shape) == (width, width)
        require(operator, square, f"rotate must have shape [{width}, {width}]")
        turned = x @ rotate.float()
    cos, sin = r1.to(input.dtype).float(), r2.to(input.dtype).float()
    return (x * cos + turned * sin).to(input.dtype)


@kernel("npu_rotary_mul_backward", document="torch_npu-npu_rotary_mul.md")
def npu_rotary_mul_backward(
    grad: Tensor, input: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str = "half"
) -> tuple[Tensor, Tensor, Tensor]:
    """(dx, dr1, dr2), all in the dtype of `input`; dr1 and dr2 summed over the broadcast dims.

    The device computes dr1 and dr2 only when r1 or r2 requires a gradient and leaves them unwritten
    otherwise; a kernel cannot see that, so here they are always right.
    """
    operator = "npu_rotary_mul_backward"
    _check_rotary(operator, input, r1, r2, rotary_mode)
    require_same_shape(operator, grad=grad, input=input)
    g, x = grad.to(input.dtype).float(), input.float()
    cos, sin = r1.to(input.dtype).float(), r2.to(input.dtype).float()
    dx = g * cos + _rotate_back(operator, g * sin, rotary_mode)
    dcos = (g * x).sum_to_size(r1.shape)
    dsin = (g * _rotate(operator, x, rotary_mode)).sum_to_size(r2.shape)
    return dx.to(input.dtype), dcos.to(input.dtype), dsin.to(input.dtype)


@kernel("npu_apply_rotary_pos_emb", document="torch_npu-apply_rotary_pos_emb.md")
def npu_apply_rotary_pos_emb(
    query: Tensor,
    key: Tensor,
    cos: Tensor,
    sin: Tensor,
    layout: str = "BSND",
    rotary_mode: str = "half",
) -> tuple[Tensor, Tensor]:
    """Rotate query and key IN PLACE and return them; the schema does not show the writes.

    Args:
        query: [B, S, N, D] or, with layout TND, [T, N, D]; D 64 or 128.
        key: like `query` with its own number of heads.
        cos: [B, S, 1, D'] or [T, 1, D']; D' 64 or 128, D' <= D: the first D' columns are rotated.
        sin: like `cos`.
        layout: "BSND" or "TND" (SBND and BNSD are Ascend 950's).
        rotary_mode: "half" (the others are Ascend 950's).
    """
    operator = "npu_apply_rotary_pos_emb"
    require_float(operator, query=query)
    require_same_dtype(operator, query=query, key=key, cos=cos, sin=sin)
    require(operator, layout in ("BSND", "TND"), f"layout must be BSND or TND, not {layout!r}")
    require(operator, rotary_mode == "half", f"rotary_mode must be 'half', not {rotary_mode!r}")
    num_dims = 4 if layout == "BSND" else 3
    require_same_shape(operator, cos=cos, sin=sin)
    for name, tensor in (("query", query), ("key", key), ("cos", cos)):
        rule = f"{name} must have {num_dims} dims for {layout} and not be empty"
        require(operator, tensor.dim() == num_dims and tensor.numel() > 0, rule)
        rule = f"the last dim of {name} must be 64 or 128, not {tensor.shape[-1]}"
        require(operator, tensor.shape[-1] in (64, 128), rule)
    same_tokens = query.shape[:-2] == key.shape[:-2] == cos.shape[:-2]
    require(operator, same_tokens, "query, key, cos and sin must have the same B and S (or T)")
    require(operator, cos.shape[-2] == 1, "the head dim of cos and sin must be 1")
    width = cos.shape[-1]
    fits = query.shape[-1] == key.shape[-1] and width <= query.shape[-1]
    require(operator, fits, "query and key need one D, not below that of cos")
    for tensor in (query, key):
        x = tensor[..., :width].float()
        turned = _rotate(operator, x, rotary_mode)
        tensor[..., :width].copy_(x * cos.float() + turned * sin.float())
    return query, key
