"""Tensor-parallel products: what moves between ranks around x W^T, forward and backward.

    column  W split by rows:     y = gather(x) W^T     dx = scatter-sum(dy W)
    row     W split by columns:  y = scatter-sum(x W^T)  dx = gather(dy) W

gather and scatter-sum are all-gather and reduce-scatter along the sequence with sequence parallel,
else nothing and all-reduce. The collectives and their overlap with the weight gradient are
Megatron's own (`linear_with_grad_accumulation_and_async_allreduce`), so what changes them there
changes them here too.
"""

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from mindspeed.te.refusal import refuse

Group = torch.distributed.ProcessGroup | None


def multiply(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    mode: str | None,
    group: Group,
    size: int,
    sequence_parallel: bool,
) -> torch.Tensor:
    """x W^T + b, over the ranks of a group.

    Args:
        x: [s, b, i]; with mode column and sequence parallel [s/p, b, i].
        weight: [o, i], this rank's slice.
        bias: [o] or None.
        mode: column, row, or None for no communication.
        group: the tensor-parallel ranks, p of them; all of them must call.
        size: p.
        sequence_parallel: the sequence is split outside of the tensor-parallel part.

    Returns:
        [s, b, o]; with mode row and sequence parallel [s/p, b, o].
    """
    if size == 1 or mode is None:
        return _multiply(x, weight, bias, None, allreduce_dgrad=False, sequence_parallel=False)
    if mode == "column":
        return _multiply(
            x, weight, bias, group,
            allreduce_dgrad=not sequence_parallel, sequence_parallel=sequence_parallel,
        )  # fmt: skip
    y = _multiply(x, weight, None, group, allreduce_dgrad=False, sequence_parallel=False)
    y = _reduce(y, group, sequence_parallel)
    return y if bias is None else y + bias


def _multiply(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, group: Group, **settings: Any
) -> torch.Tensor:
    from megatron.core.tensor_parallel import layers

    function = layers.linear_with_grad_accumulation_and_async_allreduce
    if not weight.requires_grad:
        function = layers.linear_with_frozen_weight
    y: torch.Tensor = function(
        x, weight, bias, gradient_accumulation_fusion=False, **settings,
        **_name_group(function, "tp_group", group),
    )  # fmt: skip
    return y


def _reduce(y: torch.Tensor, group: Group, sequence_parallel: bool) -> torch.Tensor:
    from megatron.core.tensor_parallel import mappings

    function: Callable[..., Any] = mappings.reduce_from_tensor_model_parallel_region
    if sequence_parallel:
        function = mappings.reduce_scatter_to_sequence_parallel_region
    total: torch.Tensor = function(y, **_name_group(function, "group", group))
    return total


def _name_group(function: Callable[..., Any], name: str, group: Group) -> dict[str, Any]:
    """The keyword that says which group; core 0.12 knows only one, and has no such keyword."""
    if name in _parameters_of(function):
        return {name: group}
    if group is not None:
        from megatron.core.parallel_state import get_tensor_model_parallel_group

        if group is not get_tensor_model_parallel_group():
            refuse("core 0.12 with another tensor-parallel group than Megatron's own")
    return {}


@cache
def _parameters_of(function: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)


class _AddToMainGrad(torch.autograd.Function):
    """The identity, whose gradient goes into the parameter's `main_grad`."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor) -> torch.Tensor:
        ctx.weight = weight
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor | None:
        weight = ctx.weight
        weight.main_grad.add_(grad)
        if not hasattr(weight, "grad_added_to_main_grad"):
            return None
        weight.grad_added_to_main_grad = True
        # Megatron's hook on the parameter runs where there is a gradient, and then drops this one.
        return torch.zeros_like(weight)


def accumulate_in_main_grad(weight: torch.Tensor) -> torch.Tensor:
    """The same weight, whose gradient is added to `weight.main_grad` (in the dtype of that)."""
    if not (weight.requires_grad and torch.is_grad_enabled()):
        return weight
    proxy: torch.Tensor = _AddToMainGrad.apply(weight)  # type: ignore[no-untyped-call]
    return proxy
