"""Ulysses: every rank attends over the whole sequence, with its share of the heads.

    rows of all heads         --all-to-all-->  all rows of n / p heads
    all rows of n / p heads   --attention--->  all rows of n / p heads
    all rows of n / p heads   --all-to-all-->  rows of all heads

What computes the attention in the middle is given: the plain kernel makes it Ulysses, ring
attention makes it the hybrid (Fang and Zhao, "USP: A Unified Sequence Parallelism Approach", 2024).

(Jacobs et al., "DeepSpeed Ulysses: System Optimizations for Enabling Training of Extreme Long
Sequence Transformer Models", 2023.)

Dims: s rows of the group, l rows of this rank, b batch, n heads, g key heads, p ranks.
"""

import math
from collections.abc import Callable

from mindspeed.core.context_parallel.block_kernel import Mask
from mindspeed.core.context_parallel.choice import Choice
from mindspeed.core.context_parallel.exchange import ProcessGroup
from mindspeed.core.context_parallel.groups import Groups
from mindspeed.core.context_parallel.heads import gather_heads, scatter_heads
from mindspeed.core.context_parallel.local import attend_locally
from mindspeed.core.context_parallel.masks import gather_rows
from mindspeed.core.context_parallel.parts import load_part
from mindspeed.core.context_parallel.placement import Placement
from mindspeed.core.context_parallel.problem import Problem, in_layout
from torch import Tensor

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def attend_by_heads(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    placement: Placement,
    group: ProcessGroup,
    attend: Attention,
) -> Tensor:
    """Attention with heads instead of rows spread over a group. Differentiable.

    Args:
        q: [l, ..., n, d], rows first.
        k: [l, ..., g, d].
        v: [l, ..., g, v].
        placement: of the group's rows.
        group: all of its ranks must call.
        attend: attention of [s, ..., n / p, d] over [s, ..., max(g / p, 1), d], rows first.

    Returns:
        [l, ..., n, v]. Two all-to-all forward and two backward.

    Raises:
        ValueError: p does not divide n, or key heads cannot be shared out.
    """
    p = group.size()
    repeats = count_repeats(q.shape[-2], k.shape[-2], p)
    if repeats > 1:
        k, v = k.repeat_interleave(repeats, -2), v.repeat_interleave(repeats, -2)
    q, k, v = scatter_heads([q, k, v], placement, group)
    return gather_heads(attend(q, k, v), placement, group)


def count_repeats(num_heads: int, num_key_heads: int, num_ranks: int) -> int:
    """How often each key head must be there so that every rank gets those of its query heads.

    Repeats travel only to different ranks: no rank gets the same head twice, unless p and g share
    no multiple that n has room for.

    Raises:
        ValueError: p does not divide n, or the repeated key heads do not divide it.
    """
    if num_heads % num_ranks:
        raise ValueError(
            f"{num_heads} attention heads on this tensor-parallel rank cannot be shared out to "
            f"{num_ranks} ranks of Ulysses: the heads must be a multiple"
        )
    wanted = math.lcm(num_key_heads, num_ranks)
    if num_heads % wanted:
        raise ValueError(
            f"{num_key_heads} key heads cannot be repeated for {num_ranks} ranks of Ulysses and "
            f"{num_heads} query heads"
        )
    return wanted // num_key_heads


def attend_ulysses(
    q: Tensor, k: Tensor, v: Tensor, problem: Problem, *, choice: Choice, groups: Groups
) -> Tensor:
    """Ulysses over all ranks; see `attention.Attention`."""
    placement = problem.place(choice.size)
    if problem.mask is not None:
        problem = problem.with_mask(gather_rows(problem.mask, placement, groups.whole))
    mask = problem.whole_mask()
    if choice.keep or choice.gather_keys:
        return _attend_again(q, k, v, problem, choice=choice, group=groups.whole, mask=mask)

    def attend_all(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend_locally(q, k, v, kernel=problem.kernel, mask=mask)

    return attend_by_heads(
        q,
        k,
        v,
        placement=placement,
        group=groups.whole,
        attend=lambda q, k, v: in_layout(q, k, v, problem, attend_all),
    )


def _attend_again(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    problem: Problem,
    *,
    choice: Choice,
    group: ProcessGroup,
    mask: Mask,
) -> Tensor:
    """Keys and values are traded by themselves, and perhaps again for the backward pass."""
    attend = load_part("ulysses_cache", "attend_again", overlay="cp-kv-cache")
    placement = problem.place(choice.size)
    repeats = count_repeats(q.shape[-2], k.shape[-2], choice.size)
    if choice.gather_keys:
        trade = load_part("ulysses_cache", "trade_gathered", overlay="cp-kv-cache")
        there, back = trade(placement, group)
    else:
        trade = load_part("ulysses_cache", "trade_repeated", overlay="cp-kv-cache")
        there, back = trade(placement, group, repeats)
    (q,) = scatter_heads([q], placement, group)
    out = attend(
        q, k, v, kernel=problem.kernel, mask=mask, there=there, back=back, keep=choice.keep
    )
    return gather_heads(out, placement, group)
