"""Scenarios with a masked softmax in them: upstream's is torch's, the operator is asked for by
`masked_softmax_fusion`, with which the pristine tree raises for most of these sizes."""

from typing import Any

import torch

from features.attention.attention_scenarios import run_core
from features.parts import Named, count_operator


def run_softmax(dtype: torch.dtype, *, fused: bool = False, **changes: Any) -> Named:
    """A DotProductAttention of two sequences."""
    return run_core(dtype, masked_softmax_fusion=fused, **changes)


def count_calls(dtype: torch.dtype, **changes: Any) -> Named:
    """How often the module calls the operator."""
    with count_operator("npu_scaled_masked_softmax") as calls:
        run_softmax(dtype, fused=True, **changes)
    return {"calls": torch.tensor(len(calls))}
