"""ALiBi inside Ascend's attention operator.

    scores = scale * Q K^T - slope_h * |j - i|          (arXiv 2108.12409)

Of 2^k heads, head h = 1 ... has the slope 2^(-8 h / 2^k). Of another number, the first 2^k have
these, and the rest every second slope of 2^(k+1) heads.

Type 0 hands the operator the bias as a tensor in the dtype of query; type 2 the slopes, and the
operator makes the bias from them in fp32.

Dims: n heads of this rank, s queries, t keys.
"""

import math
from functools import cache, lru_cache
from typing import Any

import torch
from mindspeed.core.attention.core_attention import attend
from mindspeed.core.attention.flash import Bias
from mindspeed.core.attention.second_version import attach_second_version
from mindspeed.core.hooks import Attend

# Of causal attention over more tokens the operator takes the last rows, the others lie in them.
_ROWS = 1024


def attach_alibi(module: Any, inner: Attend | None) -> Attend:
    """The hook of this feature at DotProductAttention.

    Args:
        module: the DotProductAttention under construction.
        inner: what an earlier feature computes attention with; this one replaces it.

    Raises:
        RuntimeError: the operator cannot run on this machine.
        ValueError: cross attention, where distances mean nothing.
    """
    if module.attention_type not in ("self", None):
        raise ValueError(
            f"alibi_fusion_attn_type is for self attention, not for {module.attention_type}"
        )
    attach_second_version(module, inner)
    return attend_with_alibi


def attend_with_alibi(module: Any, *arguments: Any, **keywords: Any) -> torch.Tensor:
    """`core_attention.attend` with the bias.

    Raises:
        ValueError: what `attend` and `find_bias` refuse.
    """
    return attend(module, *arguments, version=2, find_bias=find_bias, **keywords)


def find_bias(module: Any, query: torch.Tensor, key: torch.Tensor) -> Bias:
    """The bias of this rank's heads, made once for all layers.

    Raises:
        ValueError: packed sequences with type 0; another number of queries than keys with type 2.
    """
    config = module.config
    heads = query.shape[-2]
    first = _find_tensor_rank(module) * heads
    sign = -1.0 if config.alibi_diagonal_opposite else 1.0
    every = (config.num_attention_heads, first, heads, query.device, sign)
    sizes = (len(query), len(key))
    if config.alibi_fusion_attn_type == 2:
        if sizes[0] != sizes[1]:
            raise ValueError(
                "alibi_fusion_attn_type=2 needs as many queries as keys, there are "
                f"{sizes[0]} and {sizes[1]}; set 0"
            )
        return Bias(2, _keep_slopes(*every))
    if query.dim() == 3:
        raise ValueError("alibi_fusion_attn_type=0 takes no packed sequences, set 2")
    compressed = (
        module.attn_mask_type.name == "causal"
        and sizes[0] == sizes[1] > _ROWS
        and not config.fill_neg_inf
    )
    form = (config.square_alibi_mask, config.fill_neg_inf, compressed)
    return Bias(0, _keep_bias(every, sizes, query.dtype, form))


def _find_tensor_rank(module: Any) -> int:
    """Which part of the heads this rank has."""
    from megatron.core import parallel_state

    group = getattr(getattr(module, "pg_collection", None), "tp", None)
    rank: int = parallel_state.get_tensor_model_parallel_rank() if group is None else group.rank()
    return rank


def make_slopes(heads: int) -> list[float]:
    """The slope of every head of the model."""
    whole = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (h + 1) / whole) for h in range(whole)]
    if whole < heads:
        between = [2 ** (-8 * (h + 1) / (2 * whole)) for h in range(2 * whole)]
        slopes += between[::2][: heads - whole]
    return slopes


@cache
def _keep_slopes(
    all_heads: int, first: int, heads: int, device: torch.device, sign: float
) -> torch.Tensor:
    """[n], fp32; kept for the process, also where first made in inference mode."""
    slopes = make_slopes(all_heads)[first : first + heads]
    with torch.inference_mode(False):
        return torch.tensor(slopes, dtype=torch.float32, device=device) * sign


@lru_cache(maxsize=4)
def _keep_bias(
    every: tuple[int, int, int, torch.device, float],
    sizes: tuple[int, int],
    dtype: torch.dtype,
    form: tuple[bool, bool, bool],
) -> torch.Tensor:
    """[1, n, s or 1024, t]; distances in fp32, then rounded to the dtype of query."""
    queries, keys = sizes
    is_signed, is_causal, is_compressed = form
    slopes = _keep_slopes(*every)
    with torch.inference_mode(False):
        # The last query is as far along as the last key.
        rows = torch.arange(queries, device=slopes.device) + keys - queries
        rows = rows[-_ROWS:] if is_compressed else rows
        distance = (torch.arange(keys, device=slopes.device) - rows[:, None]).float()
        bias = slopes[:, None, None] * (distance if is_signed else -distance.abs())
        if is_causal:
            bias = bias.masked_fill(distance > 0, -math.inf)
        return bias.to(dtype)[None]
