"""What megatron.legacy takes from Apex and flash-attn, by Ascend operators with their signatures.

Each stands where the CUDA package is absent, so upstream could only raise there. Numbers are
upstream's: softmax in fp32 inside with masked scores at -10000, layer norm by torch's own operator
(one launch on Ascend), attention by `torch_npu.npu_fusion_attention`.

Dims: b batch, n heads, s queries, t keys, d head width, h hidden width, T = b * s tokens.
"""

from typing import Any

import torch
from mindspeed.core.fusions.masked_softmax import softmax
from mindspeed.core.operators import require_operator


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


def scaled_masked_softmax(
    module: Any, scores: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    """`masked_softmax.softmax` for the module of megatron.legacy.

    Args:
        module: its FusedScaleMaskSoftmax; if causal, the triangle takes the place of `mask`, as in
            upstream's causal kernel.
        scores: [b, n, s, t], fp16 or bf16, on an NPU.
        mask: bool, broadcasts to the scores, true where masked; None masks nothing.

    Returns:
        [b, n, s, t], same dtype.
    """
    from megatron.core.transformer.utils import get_default_causal_mask

    if module.attn_mask_type.name == "causal":
        mask = get_default_causal_mask(scores.shape[-1])
    return softmax(module, scores, mask)


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
