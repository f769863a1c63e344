"""ALiBi: attention biased by distance, beside the formula written out in plain torch.

Without `alibi` a scenario computes the formula; Megatron has no ALiBi to compare with.
"""

from typing import Any

import torch

from features.attention.attention_scenarios import make_attention, make_mask, make_packed
from features.parts import Named, make_config, make_gpt, make_random, run_backward, run_gpt_step

# By the paper, written out: of 4 heads, and of 6 (4, then every second one of 8).
SLOPES = {
    4: (1 / 4, 1 / 16, 1 / 64, 1 / 256),
    6: (1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8),
}
OPTIONS = ("alibi_diagonal_opposite", "square_alibi_mask", "fill_neg_inf")


def attend_dense(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    masked: torch.Tensor | None,
    *,
    slopes: torch.Tensor,
    opposite: bool = False,
    signed: bool = False,
    fill: bool = False,
) -> torch.Tensor:
    """[s, b, n * d] of [s, b, n, d] queries, in fp32 inside."""
    k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], 2) for x in (k, v))
    scores = torch.einsum("sbnd,tbnd->bnst", q.float(), k.float()) * q.shape[-1] ** -0.5
    late = len(k) - len(q)
    rows = torch.arange(len(q), device=q.device)[:, None] + late
    distance = (torch.arange(len(k), device=q.device) - rows).float()
    bias = slopes[:, None, None] * (distance if signed else -distance.abs())
    scores = scores + (-bias if opposite else bias)
    if fill:
        scores = scores.masked_fill(distance > 0, -torch.inf)
    if masked is not None:
        scores = scores.masked_fill(masked, -torch.inf)
    out = torch.einsum("bnst,tbnd->sbnd", scores.softmax(-1), v.float())
    return out.flatten(2).to(q.dtype)


def read_options(changes: dict[str, Any]) -> dict[str, bool]:
    """What the formula calls the options."""
    names = ("opposite", "signed", "fill")
    return {name: changes.pop(field, False) for name, field in zip(names, OPTIONS, strict=True)}


def run_core(
    dtype: torch.dtype,
    *,
    alibi: bool = False,
    kind: str = "causal",
    way: int = 2,
    heads: int = 4,
    tokens: int = 13,
    keys: int | None = None,
    mask: str = "none",
    **changes: Any,
) -> Named:
    """The module alone, or the formula: output and gradients of query, key and value."""
    length = keys or tokens
    q = make_random(tokens, 2, heads, 8, dtype=dtype)
    k, v = (make_random(length, 2, 2, 8, dtype=dtype) for _ in range(2))
    settings: dict[str, Any] = {
        "num_attention_heads": heads,
        "hidden_size": 8 * heads,
        "num_query_groups": 2,
    }
    masked = make_mask(mask, 2, tokens, length)
    if alibi:
        module = make_attention(dtype, kind=kind, alibi_fusion_attn_type=way, **settings, **changes)
        return run_backward(None, module(q, k, v, masked), q=q, k=k, v=v)
    if masked is None and kind == "causal" and tokens > 1:
        masked = make_mask("triangle", 2, tokens, length)
    slopes = torch.tensor(SLOPES[heads], device="cuda")
    out = attend_dense(q, k, v, masked, slopes=slopes, **read_options(changes))
    return run_backward(None, out, q=q, k=k, v=v)


def run_packed(dtype: torch.dtype, *, alibi: bool = False) -> Named:
    """Three sequences with padding in one tensor; distances count from each one's start."""
    packed, lengths, places = make_packed()
    q = make_random(sum(places), 4, 8, dtype=dtype)
    k, v = (make_random(sum(places), 2, 8, dtype=dtype) for _ in range(2))
    if alibi:
        module = make_attention(dtype, num_query_groups=2, alibi_fusion_attn_type=2)
        out = module(q, k, v, None, packed_seq_params=packed)
        return run_backward(None, out, q=q, k=k, v=v)
    parts, start = [], 0
    slopes = torch.tensor(SLOPES[4], device="cuda")
    for length, place in zip(lengths, places, strict=True):
        q_, k_, v_ = (x[start : start + length, None] for x in (q, k, v))
        masked = make_mask("triangle", 1, length, length)
        parts.append(attend_dense(q_, k_, v_, masked, slopes=slopes)[:, 0])
        parts.append(torch.zeros(place - length, 32, dtype=dtype, device="cuda"))
        start += place
    return run_backward(None, torch.cat(parts), q=q, k=k, v=v)


def run_gpt(
    dtype: torch.dtype, *, alibi: bool = False, way: int = 2, with_mask: bool = False,
    **changes: Any,
) -> Named:  # fmt: skip
    """Two layers of GPT that have their positions from ALiBi alone."""
    options = {"alibi_fusion_attn_type": way} if alibi else {}
    config = make_config(dtype, num_query_groups=2, **options, **changes)
    kind = "alibi" if alibi else "none"
    model = make_gpt(config, position_embedding_type=kind)
    if not alibi:
        for layer in model.decoder.layers:
            layer.self_attention.core_attention.forward = _attend_upstream
    return run_gpt_step(model, with_mask=with_mask, length=12)


def _attend_upstream(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any, **more: Any
) -> torch.Tensor:
    """In the place of a DotProductAttention: the formula for the heads of this rank."""
    from megatron.core import parallel_state

    first = parallel_state.get_tensor_model_parallel_rank() * q.shape[2]
    slopes = torch.tensor(SLOPES[4][first : first + q.shape[2]], device="cuda")
    masked = make_mask("triangle", q.shape[1], len(q), len(k))
    return attend_dense(q, k, v, masked, slopes=slopes)
