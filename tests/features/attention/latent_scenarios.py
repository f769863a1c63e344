"""Multi-latent attention in the local layer spec, with other widths of queries and values."""

import inspect
from functools import partial
from typing import Any

import pytest
import torch

from features.attention.attention_device_checks import DONE
from features.attention.attention_scenarios import make_mask
from features.parts import Named, find_grad, make_groups, make_random, run_backward


def make_latent(dtype: torch.dtype, *, value_width: int = 6, **changes: Any) -> Any:
    """A layer of multi-latent attention: queries and keys of width 8 + 4."""
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.spec_utils import build_module
    from megatron.core.transformer.transformer_config import MLATransformerConfig

    config = MLATransformerConfig(
        num_layers=1,
        hidden_size=32,
        num_attention_heads=4,
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_head_dim=8,
        qk_pos_emb_head_dim=4,
        v_head_dim=value_width,
        multi_latent_attention=True,
        rope_type="rope",
        add_bias_linear=False,
        bf16=dtype is torch.bfloat16,
        params_dtype=dtype,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        attention_softmax_in_fp32=True,
        masked_softmax_fusion=False,
        apply_rope_fusion=False,
        **changes,
    )
    spec = get_gpt_layer_local_spec(multi_latent_attention=True).submodules.self_attention
    groups = make_groups()
    extra: dict[str, Any] = {}
    if groups is not None:
        known = inspect.signature(spec.module.__init__).parameters
        extra = {k: groups for k in ("pg_collection", "model_comm_pgs") if k in known}
    module = build_module(spec, config=config, layer_number=1, **extra).cuda()
    return module.bfloat16() if dtype is torch.bfloat16 else module


def run_latent(dtype: torch.dtype, *, dense: bool = False, **changes: Any) -> Named:
    """Output and every gradient; with `dense` core attention is the formula in plain torch."""
    module = make_latent(dtype, **changes)
    if dense:
        # The scale is the layer's: at core 0.12.1 it has a factor of YaRN.
        module.core_attention.forward = partial(_attend, scale=module.softmax_scale)
    hidden = make_random(13, 2, 32, dtype=dtype)
    out, _ = module(hidden, make_mask("triangle", 2, 13, 13))
    return run_backward(module, out, hidden=hidden)


def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor,
    *,
    scale: float,
    **rest: Any,
) -> torch.Tensor:
    scores = torch.einsum("sbnd,tbnd->bnst", q.float(), k.float()) * scale
    weights = scores.masked_fill(mask, -torch.inf).softmax(-1)
    return torch.einsum("bnst,tbnd->sbnd", weights, v.float()).flatten(2).to(q.dtype)


def check_upstream_raises() -> Named:
    """A pristine release cannot build the layer: there is no behaviour to keep."""
    with pytest.raises(TypeError, match="k_channels"):
        make_latent(torch.float32)
    return DONE


def check_wide_values() -> Named:
    """The operator takes no values that are wider than the keys, and says so."""
    module = make_latent(torch.float32, value_width=16, use_flash_attn=True)
    with pytest.raises(ValueError, match="values of width 16 are wider than keys of width 12"):
        module(make_random(13, 2, 32, dtype=torch.float32), None)
    unfused = make_latent(torch.float32, value_width=16)
    hidden = make_random(13, 2, 32, dtype=torch.float32)
    unfused(hidden, make_mask("triangle", 2, 13, 13))[0].sum().backward()
    assert find_grad(hidden).shape == hidden.shape
    return DONE
