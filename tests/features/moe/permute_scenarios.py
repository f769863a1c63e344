"""Scenarios with a permutation of MoE tokens in them."""

from typing import Any

import torch

from features.parts import (
    Named,
    make_config,
    make_gpt,
    make_random,
    run_backward,
    run_gpt_step,
)

_OPTION = "use_fused_moe_token_permute_and_unpermute"


def make_map(tokens: int, experts: int, topk: int) -> torch.Tensor:
    """[n, e]: who goes where, topk experts for each token."""
    chosen = torch.rand(tokens, experts, device="cuda").topk(topk, dim=1).indices
    return torch.zeros(tokens, experts, dtype=torch.bool, device="cuda").scatter_(1, chosen, True)


def make_full_map(tokens: int, experts: int, capacity: int) -> torch.Tensor:
    """[n, e]: who goes where, `capacity` tokens for each expert."""
    return make_map(experts, tokens, capacity).T.contiguous()


def run_round(
    dtype: torch.dtype,
    *,
    fused: bool = False,
    pad: bool = False,
    weigh: bool = False,
    probs_dtype: torch.dtype | None = None,
) -> Named:
    """Permute with probabilities, weigh with them, unpermute.

    Args:
        dtype: of the tokens.
        fused: by the operators.
        pad: the same number of tokens for each expert.
        weigh: let the unpermutation weigh instead.
        probs_dtype: of the probabilities; that of the tokens by default.
    """
    from megatron.core.transformer.moe.moe_utils import permute, unpermute

    n, e, k = 12, 4, 2
    routing_map = make_full_map(n, e, n * k // e) if pad else make_map(n, e, k)
    tokens = make_random(n, 8, dtype=dtype)
    probs = make_random(n, e, dtype=probs_dtype or dtype)
    given = None if weigh else probs * routing_map
    keywords: dict[str, Any] = {"fused": fused, "drop_and_pad": pad}
    moved = permute(tokens, routing_map, probs=given, num_out_tokens=n * k, **keywords)
    slots, slot_probs, indices = moved[:3]
    if slot_probs is not None:
        slots = (slots * slot_probs.unsqueeze(-1)).to(dtype)
    merging = {"probs": probs, "routing_map": routing_map} if weigh else {}
    out = unpermute(slots * 1.5, indices, tokens.shape, **merging, **keywords)
    named = run_backward(None, out, tokens=tokens, probs=probs)
    return named | {"slots": slots}


def run_gpt(dtype: torch.dtype, *, fused: bool = False, **changes: Any) -> Named:
    """One layer of experts: a rounding more or less must not route the next one's tokens."""
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.moe import moe_utils

    if not hasattr(moe_utils, "te_general_gemm"):  # core 0.16 asks for it without looking
        moe_utils.te_general_gemm = None
    if fused:
        changes[_OPTION] = True
    settings: dict[str, Any] = {
        "num_layers": 1,
        "num_moe_experts": 4,
        "moe_router_topk": 2,
        "moe_token_dispatcher_type": "alltoall",
        "moe_aux_loss_coeff": 0.01,
    }
    config = make_config(dtype, **(settings | changes))
    assert config.moe_permute_fusion == fused
    spec = get_gpt_layer_local_spec(num_experts=4, moe_grouped_gemm=False)
    return run_gpt_step(make_gpt(config, spec=spec))


def count_launches(dtype: torch.dtype, *, fused: bool, **changes: Any) -> Named:
    """Launches of the operators in one step of the GPT."""
    from features.measure_scenarios import CountLaunches

    with CountLaunches() as launches:
        run_gpt(dtype, fused=fused, **changes)
    found = {name: n for name, n in launches.counts.items() if "_routing_map" in name}
    return {"launches": torch.tensor(sum(found.values()))}
