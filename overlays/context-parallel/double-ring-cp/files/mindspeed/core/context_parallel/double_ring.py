"""Double ring: short rings inside windows of ranks, and a long ring between the windows.

A window of W ranks passes its blocks round in W steps, while the blocks for its next W steps are
already on their way from the window before: a message between windows has W steps to arrive.

    p = 4, W = 2        step 0  1 | 2  3
    window 0  rank 0       KV0 KV1|KV2 KV3
              rank 1       KV1 KV0|KV3 KV2
    window 1  rank 2       KV2 KV3|KV0 KV1
              rank 3       KV3 KV2|KV1 KV0

(Gu et al., "LoongTrain: Efficient Training of Long-Sequence LLMs with Head-Context Parallelism",
2024.)
"""

import functools

from mindspeed.core.context_parallel.schedule import Move, Schedule, Step


@functools.cache
def schedule_double_ring(num_ranks: int, window: int) -> Schedule:
    """p / W times W steps.

    Raises:
        ValueError: W does not divide p.
    """
    p, w = num_ranks, window
    if w < 1 or p % w:
        raise ValueError(f"--cp-window-size {w} does not divide {p} ranks of the ring")
    windows = p // w

    def block(rank: int, outer: int, inner: int) -> int:
        home, place = divmod(rank, w)
        return (home - outer) % windows * w + (place - inner) % w

    steps = []
    for outer in range(windows):
        for inner in range(w):
            moves = []
            for rank in range(p):
                home, place = divmod(rank, w)
                if inner < w - 1:
                    near = home * w + (place + 1) % w
                    moves.append(Move(block(rank, outer, inner), rank, near, lane=place % 2))
                if inner == 0 and outer < windows - 1:
                    far = (rank + w) % p
                    moves.append(Move(block(rank, outer, 0), rank, far, lane=2 + home % 2))
            attends = tuple((block(rank, outer, inner),) for rank in range(p))
            steps.append(Step(attends, tuple(moves)))
    return Schedule(tuple(range(p)), tuple(steps))
