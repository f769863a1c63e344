"""Scenarios with a rotary position embedding in them."""

from typing import Any

import torch

from features.parts import (
    Named,
    call,
    count_operator,
    has_field,
    make_config,
    make_gpt,
    make_random,
    run_backward,
    run_gpt_step,
)

LENGTHS = (5, 1, 8)


def make_rope_config(dtype: torch.dtype, *, fused: bool = False, **changes: Any) -> Any:
    """A config; `fused` only where it is asked for."""
    if fused:
        changes["use_fused_rotary_pos_emb"] = True
    return make_config(dtype, **changes)


def make_angles(length: int, width: int, *, batch: int = 1) -> torch.Tensor:
    """[s, 1 or b, 1, d] in fp32, as RotaryEmbedding makes them, the same in both halves."""
    angles = torch.arange(length, device="cuda")[:, None] * 10 ** -torch.linspace(
        0, 2, width // 2, device="cuda"
    )
    both = torch.cat((angles, angles), dim=-1)[:, None, None]
    steps = torch.arange(1, batch + 1, device="cuda")[None, :, None, None]
    return both * steps


def run_batch(
    dtype: torch.dtype, *, width: int = 8, batch: int = 1, mscale: float = 1.0, **changes: Any
) -> Named:
    """apply_rotary_pos_emb on a batch; heads have width 8.

    Args:
        dtype: of the rotated tensor.
        width: of the rotated part.
        batch: of the angles: 2 for positions that differ by sequence.
        mscale: see YaRN.
        changes: for the config.
    """
    from megatron.core.models.common.embeddings.rope_utils import apply_rotary_pos_emb

    t = make_random(13, 2, 3, 8, dtype=dtype)
    angles = make_angles(13, width, batch=batch)
    out = apply_rotary_pos_emb(t, angles, make_rope_config(dtype, **changes), mscale=mscale)
    return run_backward(None, out, t=t)


def run_packed(dtype: torch.dtype, *, exact: bool = False, **changes: Any) -> Named:
    """apply_rotary_pos_emb on packed sequences; `exact`: angles for every token of the pack."""
    from megatron.core.models.common.embeddings.rope_utils import apply_rotary_pos_emb

    t = make_random(sum(LENGTHS), 3, 8, dtype=dtype)
    ends = torch.tensor([0, *LENGTHS]).cumsum(0).to(device="cuda", dtype=torch.int32)
    angles = make_angles(sum(LENGTHS) if exact else 20, 6)
    config = make_rope_config(dtype, **changes)
    return run_backward(None, apply_rotary_pos_emb(t, angles, config, cu_seqlens=ends), t=t)


def run_gpt(dtype: torch.dtype, *, percent: float = 1.0, **changes: Any) -> Named:
    """A GPT with grouped queries."""
    interleaved = changes.get("rotary_interleaved", False)
    config = make_rope_config(dtype, num_query_groups=2, **changes)
    model = make_gpt(config, rotary_percent=percent)
    assert model.rotary_pos_emb.rotary_interleaved == interleaved
    return run_gpt_step(model)


def run_multi_latent(dtype: torch.dtype, *, fused: bool = False, **changes: Any) -> Named:
    """The order of multi-latent attention, which sorts pairs before it rotates halves."""
    from megatron.core.models.common.embeddings.rope_utils import apply_rotary_pos_emb

    config = make_rope_config(dtype, fused=fused, **changes)
    config.multi_latent_attention = True  # what apply_rotary_pos_emb reads of it
    t = make_random(13, 2, 3, 8, dtype=dtype)
    keywords: dict[str, Any] = {"t": t, "freqs": make_angles(13, 8), "config": config}
    out = call(apply_rotary_pos_emb, **keywords, mla_rotary_interleaved=True, mscale=1.2)
    return run_backward(None, out, t=t)


class NoCore(torch.nn.Module):
    """In the place of core attention, which takes two head widths on some releases only."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__()


def run_multi_latent_module(dtype: torch.dtype, *, fused: bool = False, rope_type: str) -> Named:
    """Queries, keys and values of multi-latent attention, with YaRN or without."""
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer import multi_latent_attention
    from megatron.core.transformer.enums import AttnMaskType
    from megatron.core.transformer.transformer_config import MLATransformerConfig

    settings: dict[str, Any] = {
        "num_layers": 2,
        "hidden_size": 32,
        "num_attention_heads": 4,
        "add_bias_linear": False,
        "bf16": dtype is torch.bfloat16,
        "params_dtype": dtype,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_head_dim": 8,
        "qk_pos_emb_head_dim": 6,
        "v_head_dim": 8,
        "rope_type": rope_type,
        "rotary_scaling_factor": 4,
        "mscale": 1.0,
        "mscale_all_dim": 0.5,
        "apply_rope_fusion": False,
        "normalization": "LayerNorm",
    }
    more = {"use_fused_rotary_pos_emb": True} if fused else {}
    config = MLATransformerConfig(**settings, **more)
    spec = call(get_gpt_layer_local_spec, multi_latent_attention=True)
    parts = spec.submodules.self_attention.submodules
    parts.core_attention = NoCore
    if not isinstance(getattr(multi_latent_attention, "TELinear", NoCore), type):
        multi_latent_attention.TELinear = NoCore
    kind = multi_latent_attention.MLASelfAttention
    module = kind(config, parts, 1, AttnMaskType.causal).cuda().to(dtype)
    hidden = make_random(13, 2, 32, dtype=dtype)
    made = module.get_query_key_value_tensors(hidden)[:3]
    out = torch.cat([part.flatten(2) for part in made], dim=-1)
    used = {n: p for n, p in module.named_parameters() if not n.startswith("linear_proj")}
    return run_backward(None, out, hidden=hidden, **used)


def run_by_megatron_default(dtype: torch.dtype) -> Named:
    """Megatron's scripts set apply_rope_fusion; the operator takes its place."""
    assert has_field("use_fused_rotary_pos_emb")
    return run_batch(dtype, fused=True, apply_rope_fusion=True)


def count_calls(dtype: torch.dtype, *, fused: bool) -> Named:
    """How often a GPT calls the operator in a forward pass."""
    with count_operator("npu_rotary_mul") as calls:
        run_gpt(dtype, fused=fused)
    return {"calls": torch.tensor(len(calls))}
