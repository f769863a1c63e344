"""What megatron.legacy takes from Apex and flash-attn, by Ascend operators with their signatures.

Each stands where the CUDA package is absent, so upstream could only raise there. Numbers are
upstream's: softmax in fp32 inside with masked scores at -10000, layer norm by torch's own operator
(one launch on Ascend), attention by `torch_npu.npu_fusion_attention`.

Dims: b batch, n heads, s queries, t keys, d head width, h hidden width, T = b * s tokens.
"""

from functools import cache
from typing import Any

import torch
from mindspeed.core.operators import require_operator

_FEWEST, _MOST, _MULTIPLE = 32, 4096, 32  # rows and columns that npu_scaled_masked_softmax takes


def fused_layer_norm_affine(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    normalized_shape: torch.Size,
    eps: float = 1e-6,
) -> torch.Tensor:
    """Layer norm of the last dimensions, as Apex names it.

    Args:
        x: [..., h].
        weight: [h].
        bias: [h].
        normalized_shape: (h,).
        eps: added to the variance.

    Returns:
        [..., h], the dtype of x.
    """
    return torch.nn.functional.layer_norm(x, normalized_shape, weight, bias, eps)


def takes_softmax() -> bool:
    """Whether softmax is the operator's matter here: there is an NPU."""
    return hasattr(torch, "npu") and bool(torch.npu.is_available())


def fits_softmax(num_queries: int, num_keys: int) -> bool:
    """Whether the operator takes a score matrix of this size; else upstream's torch path does."""
    sizes = (num_queries, num_keys)
    return all(_FEWEST <= size <= _MOST and size % _MULTIPLE == 0 for size in sizes)


def scaled_masked_softmax(
    x: torch.Tensor, mask: torch.Tensor | None, scale: float | None, *, causal: bool
) -> torch.Tensor:
    """softmax(scale * x, masked) over the keys.

    Args:
        x: [b, n, s, t] on an NPU, fp16 or bf16, a size that `fits_softmax`.
        mask: bool, broadcasts to x, true where masked; None masks nothing.
        scale: of the scores; None is 1.
        causal: the triangle takes the place of `mask`, as in upstream's causal kernel.

    Returns:
        [b, n, s, t], the dtype of x.
    """
    torch_npu = require_operator("npu_scaled_masked_softmax", option="masked_softmax_fusion")
    if causal:
        mask = _triangle(x.shape[-1], x.device)
    elif mask is None:
        mask = torch.zeros(1, 1, 1, 1, dtype=torch.bool, device=x.device)
    # The operator's own triangle (fixed_triu_mask) is documented as unfinished.
    scale = 1.0 if scale is None else scale
    probs: torch.Tensor = torch_npu.npu_scaled_masked_softmax(x, mask, scale, False)
    return probs


@cache
def _triangle(size: int, device: torch.device) -> torch.Tensor:
    with torch.inference_mode(False):
        return torch.ones(1, 1, size, size, dtype=torch.bool, device=device).triu_(1)


def flash_attn_unpadded_func(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    num_queries: int,
    num_keys: int,
    dropout: float,
    softmax_scale: float | None = None,
    causal: bool = False,
) -> torch.Tensor:
    """Attention of equally long sequences, as flash-attn names it.

    Args:
        query: [b * s, n, d], on an NPU, fp16 or bf16.
        key: [b * t, n, d].
        value: [b * t, n, d].
        cu_seqlens_q: [b + 1]; only its length is read.
        cu_seqlens_k: not read.
        num_queries: s.
        num_keys: t.
        dropout: probability.
        softmax_scale: of the scores; None is 1 / sqrt(d).
        causal: query i attends to keys j <= i.

    Returns:
        [b * s, n, d].

    Raises:
        RuntimeError: the operator cannot run on this machine.
    """
    from mindspeed.core.attention.flash import flash_attention_packed, keep_all, keep_causal
    from mindspeed.core.attention.packing import Packing

    require_operator("npu_fusion_attention", option="--use-flash-attn")
    batches = range(1, len(cu_seqlens_q))
    packing = Packing([b * num_queries for b in batches], [b * num_keys for b in batches])
    settings: dict[str, Any] = {
        "scale": query.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale,
        "masking": keep_causal() if causal else keep_all(),
        "dropout": dropout,
    }
    out: torch.Tensor = flash_attention_packed(query, key, value, packing=packing, **settings)
    return out.reshape(query.shape)
