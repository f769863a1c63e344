"""Scenarios with a masked softmax in them: upstream's is torch's, the operator is asked for by
`masked_softmax_fusion`, with which the pristine tree raises for most of these sizes."""

from typing import Any

import torch

from features.attention.attention_scenarios import run_core
from features.parts import Named


def run_softmax(dtype: torch.dtype, *, fused: bool = False, **changes: Any) -> Named:
    """A DotProductAttention of two sequences."""
    return run_core(dtype, masked_softmax_fusion=fused, **changes)


def count_calls(dtype: torch.dtype, **changes: Any) -> Named:
    """How often the module calls the operator."""
    import torch_npu

    count = 0
    operator = torch_npu.npu_scaled_masked_softmax

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        return operator(*args, **kwargs)

    torch_npu.npu_scaled_masked_softmax = counted
    try:
        run_softmax(dtype, fused=True, **changes)
    finally:
        torch_npu.npu_scaled_masked_softmax = operator
    return {"calls": torch.tensor(count)}
