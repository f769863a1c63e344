"""Rotary position embedding as one Ascend operator.

    y = x * cos + rotate(x) * sin

    half         rotate(x) = cat(-x[d/2:], x[:d/2])          pairs (i, i + d/2)
    interleaved  rotate(x)[2i] = -x[2i+1], [2i+1] = x[2i]    pairs (2i, 2i + 1)

`torch_npu.npu_rotary_mul` computes it, and its gradient, in one launch each, in fp32 inside.
(Operator page: torch_npu API reference, `torch_npu.npu_rotary_mul`. Method: arXiv 2104.09864.)

Dims: s sequence, b batch, n heads, d rotated width, p width that is passed through.
"""

import torch
from mindspeed.core.operators import require_operator

_OPTION = "--use-fused-rotary-pos-emb (use_fused_rotary_pos_emb)"


def rotate(
    x: torch.Tensor,
    rest: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    interleaved: bool,
) -> torch.Tensor:
    """Rotate the first part of each head, pass the rest through.

    Args:
        x: [s, b, n, d], on an NPU, fp16, bf16 or fp32; d even and below 896.
        rest: [s, b, n, p], same dtype; p may be 0.
        cos: [s, 1 or b, 1, d], same dtype; with `interleaved` [s, 1, 1, d].
        sin: like cos.
        interleaved: which rotation.

    Returns:
        [s, b, n, d + p], same dtype. Kept for the backward pass: x, cos and sin.

    Raises:
        RuntimeError: the operator cannot run on this machine.
    """
    torch_npu = require_operator("npu_rotary_mul", option=_OPTION)
    mode = "interleave" if interleaved else "half"
    turned: torch.Tensor = torch_npu.npu_rotary_mul(x, cos, sin, mode)
    return torch.cat((turned, rest), dim=-1) if rest.shape[-1] else turned
