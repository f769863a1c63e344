"""Softmax of scaled, masked attention scores as one Ascend operator.

    y = softmax(where(mask, -10000, scale * x))  over the last dimension, in fp32 inside

`torch_npu.npu_scaled_masked_softmax` computes it, and its gradient, in one launch each. (Operator
page: torch_npu API reference, `torch_npu.npu_scaled_masked_softmax`.) Its `fixed_triu_mask` is
documented as unfinished, so a causal mask is given like any other.

Dims: b batch, n heads, s queries, t keys.
"""

import sys
from typing import Any

import torch

_SHORTEST, _LONGEST, _MULTIPLE = 32, 4096, 32


def has_operator() -> bool:
    """Whether this process runs on an NPU that has the operator."""
    torch_npu = sys.modules.get("torch_npu")
    return torch_npu is not None and hasattr(torch_npu, "npu_scaled_masked_softmax")


def takes(module: Any, queries: int, keys: int) -> bool:
    """Whether the operator takes scores of this size; Megatron's own torch code takes the others.

    Args:
        module: a FusedScaleMaskSoftmax, which has asked for a fused kernel.
        queries: s.
        keys: t.
    """
    sizes = (queries, keys)
    fits = all(_SHORTEST <= n <= _LONGEST and n % _MULTIPLE == 0 for n in sizes)
    # Only the torch code makes the mask of a sliding window.
    return fits and getattr(module, "window_size", None) is None


def softmax(module: Any, scores: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """The probabilities of attention.

    Args:
        module: a FusedScaleMaskSoftmax, for its scale and kind of mask.
        scores: [b, n, s, t], fp16 or bf16, on an NPU.
        mask: bool, broadcastable to the scores, true masks out; None: causal or none, as the module
            says.

    Returns:
        [b, n, s, t], same dtype. It is what is kept for the backward pass.
    """
    import torch_npu
    from megatron.core.transformer.enums import AttnMaskType
    from megatron.core.transformer.utils import get_default_causal_mask

    queries, keys = scores.shape[-2:]
    if mask is None and module.attn_mask_type == AttnMaskType.causal and queries > 1:
        assert queries == keys, "causal mask is only for self attention"
        mask = get_default_causal_mask(queries)
    if mask is None:
        mask = torch.zeros(1, 1, 1, 1, dtype=torch.bool, device=scores.device)
    scale = 1.0 if module.scale is None else module.scale
    return torch_npu.npu_scaled_masked_softmax(scores, mask, scale, False)
