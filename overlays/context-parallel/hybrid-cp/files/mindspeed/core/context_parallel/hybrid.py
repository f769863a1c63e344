"""Ulysses inside, ring attention between: p = u times r ranks.

u neighbours trade rows for heads; then each holds, for n / u heads, what one rank of a ring of r
would hold: the chunks of u neighbours under a zigzag over p are two chunks of one over r. So the
ring is the plain one, over every u-th rank.

    p = 4, u = 2     chunks    after the exchange
    rank 0           0, 7      0 1, 6 7 for the first half of the heads
    rank 1           1, 6      0 1, 6 7 for the other half
    rank 2           2, 5      2 3, 4 5 for the first half
    rank 3           3, 4      2 3, 4 5 for the other half

(Fang and Zhao, "USP: A Unified Sequence Parallelism Approach for Long Context Generative AI",
2024.)
"""

from mindspeed.core.context_parallel.choice import Choice
from mindspeed.core.context_parallel.groups import Groups
from mindspeed.core.context_parallel.masks import gather_rows
from mindspeed.core.context_parallel.placement import Placement
from mindspeed.core.context_parallel.problem import Problem, run_schedule
from mindspeed.core.context_parallel.ring import choose_schedule
from mindspeed.core.context_parallel.ulysses import attend_by_heads
from torch import Tensor


def attend_hybrid(
    q: Tensor, k: Tensor, v: Tensor, problem: Problem, *, choice: Choice, groups: Groups
) -> Tensor:
    """Ulysses over `choice.ulysses` neighbours, ring over the rest; see `attention.Attention`."""
    assert groups.ulysses is not None
    ring = groups.whole.rank() // choice.ulysses
    first = ring * choice.ulysses
    placement = Placement(problem.place(choice.size).ranges[first : first + choice.ulysses])
    if problem.mask is not None:
        problem = problem.with_mask(gather_rows(problem.mask, placement, groups.ulysses))

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return run_schedule(
            q,
            k,
            v,
            problem,
            schedule=choose_schedule(choice.ring, choice.window),
            rank=ring,
            lanes=groups.rings,
            fused_merge=choice.fused_merge,
            keep=choice.keep,
        )

    return attend_by_heads(q, k, v, placement=placement, group=groups.ulysses, attend=attend)
