"""The step counts of torch's Adam in Megatron's distributed optimizer."""

from collections.abc import Mapping
from typing import Any

import torch


def keep_step(tensors: Mapping[str, Any], state: dict[str, torch.Tensor]) -> Mapping[str, Any]:
    """Loaded tensors of a parameter, with the step that its state has already.

    The step is not among the tensors that are sharded, and Megatron has given all states the same
    tensor, which each parameter would count up: here each gets its own.

    Args:
        tensors: by name, "param", "exp_avg" and so on.
        state: of the parameter in the optimizer, changed.
    """
    if "step" not in state:
        return tensors
    state["step"] = state["step"].clone()
    return {**tensors, "step": state["step"]}
