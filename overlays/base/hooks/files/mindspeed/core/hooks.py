"""Hook points: the one place in an upstream function where several features may act.

A feature names a function for a point in its overlay.toml, with the fields that switch it on:

    [[hook]]
    point = "attention"
    function = "mindspeed.core.attention.core_attention:attach_flash_attention"
    when = ["use_flash_attn", "attention_backend=flash|fused"]

The build writes all of them, in series order, to `mindspeed.hook_table`. A function is imported
when one of its conditions first holds. Where several do, each gets what the ones before made of the
thing, as `inner`, and returns what it makes of it. None means upstream's own, at the start and at
the end; a point that nobody is at costs one call.

| Point | Asked | With | Answer |
|---|---|---|---|
| activation | when an MLP or grouped experts are built | (module, inner) | `Activate` |
| attention | when a DotProductAttention is built | (module, inner) | `Attend`, its forward |
| batch | by get_batch_on_this_cp_rank | (batch, cp_group, inner) | the sliced batch |
| block | when a TransformerBlock is built | (block, inner) | its forward, the block first |
| dispatcher | when a MoELayer is built | (layer, groups, inner) | a token dispatcher |
| groups | when the first module after initialize_model_parallel is built | (config,) | - |
| layer | when a TransformerLayer is built | (layer, inner) | its forward, the layer first |
| optimizer | when an Adam is made | (config, inner) | the class that is called |
| weight_grad | by a linear layer, with gradient_accumulation_fusion | (layer, inner) | `AddGrad` |

At block, layer and optimizer `inner` is upstream's own to begin with.
"""

import importlib
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, Protocol

import torch
from mindspeed.hook_table import HOOKS

Conditions = tuple[tuple[str, tuple[str, ...]], ...]

_POINTS: dict[str, tuple[tuple[str, Conditions], ...]] = {
    name: tuple((function, when) for point, _, function, when in HOOKS if point == name)
    for name in {point for point, *_ in HOOKS}
}

# The config that the groups were made for: of the first model since initialize_model_parallel.
_owner: Any = None


class Attend(Protocol):
    """What computes attention for a DotProductAttention: its forward, with the module first."""

    def __call__(
        self,
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        attn_mask_type: Any = None,
        attention_bias: torch.Tensor | None = None,
        packed_seq_params: Any = None,
    ) -> torch.Tensor:
        """[s, b, n, d] queries, [t, b, g, d] keys and values to [s, b, n * d]."""


class Activate(Protocol):
    """What stands between the two linear layers of an MLP, or of experts in one grouped matmul."""

    def __call__(
        self,
        module: Any,
        x: torch.Tensor,
        bias: torch.Tensor | None,
        scale: torch.Tensor | None,
    ) -> torch.Tensor:
        """activation(x + bias) * scale, in the dtype of x.

        Args:
            module: with `config` and `activation_func`.
            x: [..., h], or [..., 2h] with config.gated_linear_unit, its halves one after the other.
            bias: broadcast over x, or None.
            scale: [..., 1], the routing weight of each token, often in a wider dtype; or None.

        Returns:
            [..., h].
        """


class AddGrad(Protocol):
    """What adds the gradient of a linear layer's weight to the parameter's `main_grad`."""

    def __call__(
        self, total_input: torch.Tensor, grad_output: torch.Tensor, main_grad: torch.Tensor
    ) -> None:
        """main_grad += grad_output.T @ total_input, in place.

        Args:
            total_input: [t, i], gathered over the tensor-parallel ranks where sequence parallel.
            grad_output: [t, o], same dtype.
            main_grad: [o, i], fp32 as a rule; another dtype is the function's to refuse.
        """


def bind_activation(module: Any) -> Activate | None:
    """What computes the activation of an MLP or of grouped experts; None: upstream's own code.

    Args:
        module: under construction, with `config`.
    """
    activate: Activate | None = None
    for function in _asked("activation", module.config):
        activate = function(module, activate)
    return activate


def spread_bias(biases: list[torch.Tensor] | None, num_tokens: list[int]) -> torch.Tensor | None:
    """The biases of grouped experts as one row for each token, which core 0.12 and 0.14 have apart.

    Args:
        biases: [h] of each expert, or None.
        num_tokens: of each expert.

    Returns:
        [t, h], or None.
    """
    if biases is None:
        return None
    rows = [bias.expand(n, -1) for bias, n in zip(biases, num_tokens, strict=True)]
    return torch.cat(rows)


def bind_attention(module: Any) -> Attend | None:
    """What computes attention in place of a DotProductAttention's own forward; None: its own.

    Args:
        module: under construction, with `config`, `layer_number` and `attn_mask_type`.
    """
    attend: Attend | None = None
    for function in _asked("attention", module.config):
        attend = function(module, attend)
    return attend


def slice_batch(batch: dict[str, Any], cp_group: Any = None) -> dict[str, Any] | None:
    """This context-parallel rank's part of a batch, where a feature cuts it another way.

    Conditions are those of the config that the groups were made for.

    Args:
        batch: of get_batch_on_this_cp_rank, name to tensor or None.
        cp_group: the context-parallel ranks; None for those of parallel_state.
    """
    sliced: dict[str, Any] | None = None
    for function in _asked("batch", _owner):
        sliced = function(batch, cp_group, sliced)
    return sliced


def make_dispatcher(layer: Any, groups: Any = None) -> Any:
    """The token dispatcher of a MoELayer, where a feature has its own or wraps upstream's.

    Args:
        layer: under construction, with `config`, `num_local_experts`, `local_expert_indices`.
        groups: the process groups that the layer was given; None before core 0.14.
    """
    dispatcher = None
    for function in _asked("dispatcher", layer.config):
        dispatcher = function(layer, groups, dispatcher)
    return dispatcher


def wrap_forward(point: str, module: Any) -> None:
    """Give a module the forward that features make of its class's, at `block` or `layer`.

    Without one the module keeps none of its own. With one, it is pickled and copied as the function
    that the feature returns; a layer that a schedule runs in parts does not pass it.

    Args:
        point: "block" or "layer".
        module: built, with `config`.
    """
    forward = None
    for function in _asked(point, module.config):
        forward = function(module, forward or type(module).forward)
    if forward is not None:
        module.forward = partial(forward, module)


def choose_adam(config: Any, upstream: type[torch.optim.Optimizer]) -> Callable[..., Any]:
    """The Adam of get_megatron_optimizer.

    Args:
        config: an OptimizerConfig.
        upstream: the class that upstream takes here.

    Returns:
        What is called with upstream's keywords: params, lr, weight_decay, betas, eps, and those of
        precision-aware states and newer releases. Upstream expects exp_avg and exp_avg_sq in the
        state of what that returns. Not asked for optimizers that are offloaded to the host.
    """
    made: Callable[..., Any] = upstream
    for function in _asked("optimizer", config):
        made = function(config, made)
    return made


def bind_weight_grad(layer: Any, config: Any) -> AddGrad | None:
    """What adds a linear layer's weight gradient to main_grad; None: upstream's own.

    Asked only with gradient_accumulation_fusion, which is what makes upstream accumulate there.

    Args:
        layer: a ColumnParallelLinear or RowParallelLinear under construction.
        config: its ModelParallelConfig.
    """
    add: AddGrad | None = None
    if config.gradient_accumulation_fusion:
        for function in _asked("weight_grad", config):
            add = function(layer, add)
    return add


def create_groups(config: Any) -> None:
    """Let each feature make the process groups that it needs, in series order.

    Every module of a model passes here. All ranks build their first model in the same order, so
    that they make the same groups together; later models share the groups.
    """
    global _owner
    if _owner is not None or config is None:
        return
    from megatron.core import parallel_state

    if parallel_state.is_initialized():
        _owner = config
        for function in _asked("groups", config):
            function(config)


def forget_groups() -> None:
    """destroy_model_parallel was called: the next model makes groups anew."""
    global _owner
    _owner = None


def _asked(point: str, config: Any) -> Iterator[Callable[..., Any]]:
    """The functions at a point whose conditions hold, in series order."""
    for function, when in _POINTS.get(point, ()):
        if any(_holds(config, field, values) for field, values in when):
            yield _load(function)


def _holds(config: Any, field: str, values: tuple[str, ...]) -> bool:
    value = getattr(config, field, None)
    return str(getattr(value, "name", value)) in values if values else bool(value)


@cache
def _load(function: str) -> Callable[..., Any]:
    module, _, name = function.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found
