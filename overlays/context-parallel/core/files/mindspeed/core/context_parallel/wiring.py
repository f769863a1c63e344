"""Context parallelism in the place of Megatron's DotProductAttention.

Upstream's local attention refuses context_parallel_size > 1; here it is computed by the algorithm
that `choice` finds. Tokens are where upstream puts them: `get_batch_on_this_cp_rank`, rotary
embeddings, position ids and loss masks are upstream's own, for every algorithm.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from mindspeed.core.context_parallel.attention import load_attention
from mindspeed.core.context_parallel.block_kernel import require_operator
from mindspeed.core.context_parallel.choice import choose
from mindspeed.core.context_parallel.exchange import ProcessGroup
from mindspeed.core.context_parallel.layer import Layer, attend_layer
from torch import Tensor


def attach_context_parallel(module: Any, inner: Callable[..., Tensor] | None) -> Any:
    """Hook: what computes attention for a DotProductAttention under construction.

    Args:
        module: under construction, with config, layer_number, attn_mask_type, attention_type.
        inner: what an earlier feature computes attention with, kept where there is one rank.

    Raises:
        ValueError: settings that cannot be together with context parallelism.
        RuntimeError: the operator cannot run here.
    """
    if module.config.context_parallel_size == 1:
        return inner
    choice = choose(module.config, module.layer_number)
    refuse_unsupported(module)
    require_operator()
    load_attention(choice)
    return attend


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    attn_mask_type: Any = None,
    attention_bias: Tensor | None = None,
    packed_seq_params: Any = None,
) -> Tensor:
    """`DotProductAttention.forward`; see `layer.attend_layer`."""
    if attention_bias is not None:
        raise ValueError("context parallelism takes no attention_bias")
    scale = module.softmax_scale
    if module.config.apply_query_key_layer_scaling:
        scale *= module.layer_number  # upstream divides here and multiplies in its softmax
    dropout = module.attention_dropout.p if module.training else 0.0
    layer = Layer(
        choose(module.config, module.layer_number),
        module.attn_mask_type.name,
        scale,
        dropout,
        _find_group(module),
        _fork_random_state(module, dropout),
    )
    return attend_layer(layer, query, key, value, mask=attention_mask, packed=packed_seq_params)


def _find_group(module: Any) -> ProcessGroup:
    """The context-parallel ranks: those of the module's process groups, or parallel_state's."""
    from megatron.core import parallel_state

    group = getattr(getattr(module, "pg_collection", None), "cp", None)
    return parallel_state.get_context_parallel_group() if group is None else group


def _fork_random_state(module: Any, dropout: float) -> AbstractContextManager[Any]:
    """Upstream's rule: tensor-parallel ranks drop different scores of their different heads."""
    if not dropout or module.config.sequence_parallel:
        return nullcontext()
    from megatron.core.tensor_parallel import get_cuda_rng_tracker

    forked: AbstractContextManager[Any] = get_cuda_rng_tracker().fork()
    return forked


def refuse_unsupported(module: Any) -> None:
    """Refuse what a module asks for and cannot be spread.

    Raises:
        ValueError: with the setting and the reason.
    """
    config = module.config
    for field, off, why in (
        ("window_size", None, "a sliding window"),
        ("softmax_type", "vanilla", "a softmax offset"),
        ("sparse_mode", 0, "a sparse mode of the operator, which says what is masked as well,"),
    ):
        value = getattr(config, field, off)
        if value is not None and value != off:
            raise ValueError(
                f"context parallelism (context_parallel_size={config.context_parallel_size}) "
                f"cannot be together with {field}={value}: {why} is not spread over ranks"
            )
    backend = getattr(getattr(config, "attention_backend", None), "name", "auto")
    if backend in ("unfused", "local"):
        raise ValueError(
            f"attention_backend={backend} asks for upstream's own attention, which has no context "
            "parallelism: leave it at auto, or set flash"
        )
    if module.attention_type not in ("self", None):
        raise ValueError(
            f"context parallelism is for self attention, not for {module.attention_type} attention"
        )
