"""Flash attention in the place of Megatron's DotProductAttention: wiring for the local layer spec.

The result is upstream's for every mask that upstream computes. Where upstream looks at a mask
tensor, that tensor decides alone, here as there; where it makes a causal mask by itself, none is
made. What upstream refuses (packed sequences, causal_bottom_right) works, as with the names of
TransformerEngine.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from mindspeed.core.attention.flash import (
    Bias,
    Masking,
    flash_attention,
    flash_attention_packed,
    keep_all,
    keep_band,
    keep_causal,
    keep_unmasked,
)
from mindspeed.core.attention.packing import read_packing
from mindspeed.core.hooks import Attend
from mindspeed.core.operators import require_operator

_OPTION = "--use-flash-attn (use_flash_attn) or attention_backend=flash|fused"

FindBias = Callable[[Any, torch.Tensor, torch.Tensor], Bias]

_CAUSAL = ("causal", "padding_causal")


def attach_flash_attention(module: Any, inner: Attend | None) -> Attend:
    """The hook of this feature at DotProductAttention.

    Args:
        module: the DotProductAttention under construction.
        inner: what an earlier feature computes attention with; this one replaces it.

    Raises:
        RuntimeError: the operator cannot run on this machine.
        ValueError: the sliding window has a negative number.
    """
    window = module.config.window_size
    if window is not None and min(window) < 0:
        raise ValueError(
            f"window_size {window}: the local layer spec masks every score for a negative number; "
            "use a layer spec with TransformerEngine's names, or no negative number"
        )
    require_operator("npu_fusion_attention", option=_OPTION)
    return attend


def attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    attn_mask_type: Any = None,
    attention_bias: torch.Tensor | None = None,
    packed_seq_params: Any = None,
    *,
    version: int = 1,
    find_bias: FindBias | None = None,
) -> torch.Tensor:
    """`DotProductAttention.forward` by the operator.

    Args:
        module: a DotProductAttention.
        query: [s, b, n, d]; packed [T, n, d].
        key: [t, b, g, d]; packed [Tk, g, d].
        value: [t, b, g, v]; packed [Tk, g, v].
        attention_mask: bool, true where masked, broadcasts to [b, n, s, t]; None where the mask
            type says it all. Packed sequences do not read it.
        attn_mask_type: not read, as upstream: the module's own one counts.
        attention_bias: must be None, as upstream.
        packed_seq_params: Megatron's PackedSeqParams, for packed sequences.
        version: of the operator, 1 or 2.
        find_bias: makes the bias of the scores, of module, query and key.

    Returns:
        [s, b, n * v]; packed [T, n * v].

    Raises:
        ValueError: a mask that the operator cannot express, or that is missing.
    """
    if attention_bias is not None:
        raise ValueError(
            "DotProductAttention takes no attention_bias, with --use-flash-attn either"
        )
    settings: dict[str, Any] = {
        "scale": _find_scale(module),
        "dropout": module.attention_dropout.p if module.training else 0.0,
        "sink": getattr(module, "softmax_offset", None),
        "version": version,
        "bias": None if find_bias is None else find_bias(module, query, key),
    }
    with _fork_random_state(module, settings["dropout"]):
        if packed_seq_params is None:
            masking = choose_masking(module, attention_mask, query, key)
            return flash_attention(query, key, value, masking=masking, **settings)
        packing = read_packing(packed_seq_params, num_queries=len(query), num_keys=len(key))
        return flash_attention_packed(
            query, key, value, packing=packing, masking=choose_packed_masking(module), **settings
        )


def _find_scale(module: Any) -> float:
    """The scale of the scores; upstream divides by the layer number and multiplies it in again."""
    scale: float = module.softmax_scale
    if module.config.apply_query_key_layer_scaling:
        scale *= module.layer_number
    return scale


def _fork_random_state(module: Any, dropout: float) -> AbstractContextManager[Any]:
    """Upstream's rule: ranks of one tensor-parallel group drop different scores of their heads."""
    if not dropout or module.config.sequence_parallel:
        return nullcontext()
    from megatron.core.tensor_parallel import get_cuda_rng_tracker

    forked: AbstractContextManager[Any] = get_cuda_rng_tracker().fork()
    return forked


def choose_masking(
    module: Any, mask: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor
) -> Masking:
    """What upstream's DotProductAttention keeps for this mask.

    Raises:
        ValueError: the mask type needs a mask tensor, or other lengths.
    """
    kind = module.attn_mask_type.name
    sizes = {"num_queries": query.shape[0], "num_keys": key.shape[0]}
    band = _find_band(module, kind)
    if band is not None:
        if sizes["num_queries"] > sizes["num_keys"]:
            raise ValueError(f"a band needs as many keys as queries, there are {sizes}")
        return band
    if mask is not None and not (kind == "causal" and module.config.sparse_mode == 2):
        return keep_unmasked(mask, batch=query.shape[1], **sizes)
    if kind == "causal_bottom_right":
        return keep_causal(bottom_right=True)
    if kind == "causal" and sizes["num_queries"] > 1:  # one query is the newest of a cache
        if sizes["num_queries"] != sizes["num_keys"]:
            raise ValueError(f"a causal mask is for self attention, there are {sizes}")
        return keep_causal()
    if kind in ("arbitrary", "padding_causal"):
        raise ValueError(f"attn_mask_type {kind} needs an attention_mask, there is none")
    return keep_all()


def choose_packed_masking(module: Any) -> Masking:
    """What is kept inside each packed sequence.

    Raises:
        ValueError: the mask type says nothing about packed sequences.
    """
    kind = module.attn_mask_type.name
    band = _find_band(module, kind)
    if band is not None:
        return band
    if kind in _CAUSAL:
        return keep_causal()
    if kind == "causal_bottom_right":
        return keep_causal(bottom_right=True)
    if kind in ("padding", "no_mask"):
        return keep_all()
    raise ValueError(f"attn_mask_type {kind} cannot be computed on packed sequences")


def _find_band(module: Any, kind: str) -> Masking | None:
    """The band of --sparse-mode 4, or of upstream's sliding window; None where there is none.

    Upstream's window holds for every mask type, and no mask tensor is looked at beside it.
    """
    config = module.config
    if config.sparse_mode == 4 and kind in _CAUSAL:
        return keep_band(config.pre_tockens, config.next_tockens)
    window: tuple[int, int] | None = getattr(module.scale_mask_softmax, "window_size", None)
    return None if window is None else keep_band(*window)
