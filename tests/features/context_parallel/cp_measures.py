"""What a layer of context-parallel attention sends, keeps and launches on each rank."""

import gc
from typing import Any

import torch
import torch.distributed as dist

from features.context_parallel.cp_ranks import Case, make_inputs, run_algorithm


def measure(cases: list[Case]) -> list[dict[str, Any]]:
    """For each case the numbers of this rank, after one pass that makes masks and groups."""
    gc.disable()  # what lies in cycles would be freed at one time or another
    return [_measure(case) for case in cases]


def _measure(case: Case) -> dict[str, Any]:
    from torch_npu import npu

    from ascend_sim import comm_log

    _, given, _, hidden, _ = make_inputs(case)
    run_algorithm(case, given, hidden).sum().backward()
    for x in given:
        x.grad = None
    gc.collect()
    npu.synchronize()
    before = npu.memory_allocated()
    npu.reset_peak_memory_stats()
    comm_log.reset_traffic()
    with comm_log.record_launches() as log:
        out = run_algorithm(case, given, hidden)
        comm_log.mark("backward")
        forward = _count()
        peak = npu.max_memory_allocated() - before
        gc.collect()
        kept = npu.memory_allocated() - before
        out.backward(torch.ones_like(out))
    total = _count()
    found = {
        "forward_bytes": forward[0],
        "backward_bytes": total[0] - forward[0],
        "forward_messages": forward[1],
        "backward_messages": total[1] - forward[1],
        "kept_bytes": kept,
        "peak_bytes": peak,
        "log": [(event.kind, event.name, event.launch) for event in log],
        "unwaited": comm_log.unwaited(),
    }
    dist.barrier()
    return found


def _count() -> tuple[int, int]:
    from ascend_sim import comm_log

    lines = [line for line in comm_log.traffic() if line.sent_bytes]
    return sum(line.sent_bytes for line in lines), sum(line.calls for line in lines)
