"""What a layer of context-parallel attention sends, keeps and launches on each rank."""

import gc
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor

from features.context_parallel.cp_case import Case, make_inputs, own_rows
from features.context_parallel.cp_ranks import run_algorithm


def measure(cases: list[Case]) -> list[dict[str, Any]]:
    """For each case the numbers of this rank, after one pass that makes masks and groups."""
    return [_measure(case) for case in cases]


def _measure(case: Case) -> dict[str, Any]:
    _, given, grad, hidden, _ = make_inputs(case)
    return measure_call(lambda: run_algorithm(case, given, hidden), given, cut_grad(case, grad))


def cut_grad(case: Case, grad: Tensor) -> Tensor:
    """This rank's rows of the output's gradient, on the device."""
    return grad[own_rows(case, dist.get_rank(), dist.get_world_size())].to("npu")


def measure_call(
    attend: Callable[[], Tensor], leaves: Sequence[Tensor], grad: Tensor
) -> dict[str, Any]:
    """The numbers of one forward and backward pass, after one that is not counted.

    Args:
        attend: attention of `leaves`.
        leaves: queries, keys and values.
        grad: of the output, which has as many elements.

    Returns:
        Bytes and messages of each pass; bytes kept between them; the peak of the forward pass, and
        of both; launches and waits in order; what was not waited for; output and gradients.
    """
    from torch_npu import npu

    from ascend_sim import comm_log

    gc.disable()  # what lies in cycles would be freed at one time or another
    attend().sum().backward()
    for x in leaves:
        x.grad = None
    gc.collect()
    npu.synchronize()
    before = npu.memory_allocated()
    npu.reset_peak_memory_stats()
    comm_log.reset_traffic()
    with comm_log.record_launches() as log:
        out = attend()
        comm_log.mark("backward")
        forward = _count()
        peak = npu.max_memory_allocated() - before
        dist.barrier()  # what was sent is let go once its receiver has it
        gc.collect()
        kept = npu.memory_allocated() - before
        out.backward(grad.view(out.shape))
    total = _count()
    found = {
        "forward_bytes": forward[0],
        "backward_bytes": total[0] - forward[0],
        "forward_messages": forward[1],
        "backward_messages": total[1] - forward[1],
        "kept_bytes": kept,
        "peak_bytes": peak,
        "both_peak_bytes": npu.max_memory_allocated() - before,
        "log": [(event.kind, event.name, event.launch) for event in log],
        "unwaited": comm_log.unwaited(),
        "tensors": [out.detach().view(grad.shape).cpu(), *(_grad_of(x) for x in leaves)],
    }
    dist.barrier()
    return found


def _grad_of(x: Tensor) -> Tensor:
    assert x.grad is not None
    return x.grad.cpu()


def _count() -> tuple[int, int]:
    from ascend_sim import comm_log

    lines = [line for line in comm_log.traffic() if line.sent_bytes]
    return sum(line.sent_bytes for line in lines), sum(line.calls for line in lines)
