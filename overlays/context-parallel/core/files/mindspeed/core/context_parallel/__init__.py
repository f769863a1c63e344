"""Attention over a sequence that is spread over ranks.

Three kinds of module, so that a new algorithm is one file:

    maths           online_softmax, block_kernel, placement: torch only
    schedules       schedule and one file an algorithm: who attends to which block at which step,
                    who sends it to whom; plain tuples, no tensors, no live group
    communication   exchange, circulate: run a schedule, or trade heads for rows, in given groups

Wiring to Megatron is in `wiring`, sizes and bytes for planners in `costs`.
"""
