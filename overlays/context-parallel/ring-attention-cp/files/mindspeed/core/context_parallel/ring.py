"""Ring attention: keys and values go round, one rank further at each step.

    step      0     1     2     3
    rank 0   KV0   KV3   KV2   KV1
    rank 1   KV1   KV0   KV3   KV2
    rank 2   KV2   KV1   KV0   KV3
    rank 3   KV3   KV2   KV1   KV0

(Liu, Zaharia and Abbeel, "Ring Attention with Blockwise Transformers for Near-Infinite Context",
2023.)
"""

import functools

from mindspeed.core.context_parallel.choice import Choice
from mindspeed.core.context_parallel.groups import Groups
from mindspeed.core.context_parallel.parts import load_part
from mindspeed.core.context_parallel.problem import Problem, run_schedule
from mindspeed.core.context_parallel.schedule import Move, Schedule, Step
from torch import Tensor


@functools.cache
def schedule_ring(num_ranks: int) -> Schedule:
    """p steps; in all but the last every rank sends what it holds to the next one."""
    p = num_ranks
    steps = []
    for t in range(p):
        holds = tuple((rank - t) % p for rank in range(p))
        moves = [Move(holds[rank], rank, (rank + 1) % p, lane=rank % 2) for rank in range(p)]
        steps.append(Step(tuple((block,) for block in holds), tuple(moves) if t < p - 1 else ()))
    return Schedule(tuple(range(p)), tuple(steps))


def choose_schedule(num_ranks: int, window: int) -> Schedule:
    """A plain ring, or a double one.

    Raises:
        ValueError: the window does not divide the ring, or double rings are not in this build.
    """
    if window == 1:
        return schedule_ring(num_ranks)
    make = load_part("double_ring", "schedule_double_ring", overlay="double-ring-cp")
    schedule: Schedule = make(num_ranks, window)
    return schedule


def attend_ring(
    q: Tensor, k: Tensor, v: Tensor, problem: Problem, *, choice: Choice, groups: Groups
) -> Tensor:
    """Ring attention over all ranks; see `attention.Attention`."""
    return run_schedule(
        q,
        k,
        v,
        problem,
        schedule=choose_schedule(choice.size, choice.window),
        rank=groups.whole.rank(),
        lanes=groups.rings,
        fused_merge=choice.fused_merge,
        keep=choice.keep,
    )
