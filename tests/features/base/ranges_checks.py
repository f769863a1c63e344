"""What `test_ranges` runs on a tree."""

import inspect
from typing import Any

import torch


def run_schedule_node() -> dict[str, torch.Tensor]:
    """A node of the schedule that overlaps communication of experts, forward and backward."""
    from megatron.core.pipeline_parallel.utils import ScheduleNode

    stream, event = torch.cuda.current_stream(), torch.cuda.Event()
    kind = inspect.signature(ScheduleNode).parameters["stream"].annotation
    asked = (lambda: stream) if "Callable" in str(kind) else stream  # by release
    node = ScheduleNode(lambda x: x * 3, asked, event, name="times three")
    values = torch.arange(4.0, device="cuda", requires_grad=True)
    result = node.forward((values,))
    gradient = node.backward((torch.ones(4, device="cuda"),))
    return {"result": result, "gradient": gradient}


def mark_ranges() -> dict[str, torch.Tensor]:
    """Switch Megatron's ranges on, and see them arrive at mstx."""
    import torch_npu
    from megatron.core.utils import configure_nvtx_profiling, nvtx_range_pop, nvtx_range_push

    seen: list[Any] = []
    torch_npu.npu.mstx.range_push = lambda message: seen.append(message)
    torch_npu.npu.mstx.range_pop = lambda: seen.append(None)
    configure_nvtx_profiling(True)
    nvtx_range_push("layer")
    nvtx_range_pop("layer")
    configure_nvtx_profiling(False)
    nvtx_range_push("unseen")
    assert seen == ["layer", None], seen
    return {}


def mark_ranges_without_npu() -> list[Any]:
    """The calls that `torch.cuda.nvtx` gets in a process without an NPU."""
    import megatron.core.utils  # noqa: F401
    from mindspeed.core.ranges import nvtx

    seen: list[Any] = []
    torch.cuda.nvtx.range_push = lambda message: seen.append(message)
    torch.cuda.nvtx.range_pop = lambda: seen.append(None)
    nvtx.range_push("outer")
    try:
        with nvtx.range("inner {}", 1):
            raise KeyError
    except KeyError:
        nvtx.range_pop()
    return seen
