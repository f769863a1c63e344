"""Context parallelism for layers with TransformerEngine's names (overlay base/te).

The module that base/te puts in place of TransformerEngine's DotProductAttention asks here once it
is told that the sequence is spread over ranks. Settings mean the same as for Megatron's local
layers.
"""

from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

from mindspeed.core.context_parallel.attention import load_attention
from mindspeed.core.context_parallel.block_kernel import require_operator
from mindspeed.core.context_parallel.choice import choose
from mindspeed.core.context_parallel.exchange import ProcessGroup
from mindspeed.core.context_parallel.layer import Layer, attend_layer
from mindspeed.core.context_parallel.masks import once
from mindspeed.core.context_parallel.wiring import refuse_unsupported
from torch import Tensor


def confirm_spread(module: Any, groups: Any) -> None:
    """Make sure that a module can be computed.

    Args:
        module: with TransformerEngine's attributes and Megatron's config.
        groups: its context-parallel group, or both levels of it.

    Raises:
        ValueError: settings that cannot be together with context parallelism.
        RuntimeError: the operator cannot run here.
    """
    config = getattr(module, "config", None)
    size = getattr(config, "context_parallel_size", None)
    whole = find_whole(groups)
    if size != whole.size():
        raise ValueError(
            f"attention is spread over {whole.size()} context-parallel ranks, and its config says "
            f"context_parallel_size={size}"
        )
    choice = choose(config, getattr(module, "layer_number", None) or 1)
    refuse_unsupported(module)
    require_operator()
    load_attention(choice)


def find_whole(groups: Any) -> ProcessGroup:
    """All context-parallel ranks; of both levels of a hierarchy, those of parallel_state."""
    if not isinstance(groups, (list, tuple)):
        whole: ProcessGroup = groups
        return whole
    from megatron.core import parallel_state

    return parallel_state.get_context_parallel_group()


def attend_spread(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Any,
    kind: str,
    scale: float,
    dropout: float,
    random_state: AbstractContextManager[Any],
    tables: tuple[Tensor | None, Tensor | None] | None,
) -> Tensor:
    """Attention of this rank's rows over the whole sequence; see `layer.attend_layer`.

    Args:
        module: with Megatron's config.
        query: [l, b, n, d]; packed [l, n, d].
        key: likewise.
        value: likewise.
        mask: a tensor or None. As TransformerEngine, it is not read where the kind is causal.
        kind: the name of attn_mask_type.
        scale: of the scores.
        dropout: probability.
        random_state: entered while dropout is drawn.
        tables: packed: cu_seqlens_q, and the padded one or None.

    Raises:
        ValueError: lengths or a mask that cannot be.
    """
    layer = Layer(
        choose(module.config, module.layer_number),
        kind,
        scale,
        dropout,
        find_whole(module.cp_group),
        random_state,
    )
    packed = None
    if tables is not None and tables[0] is not None:
        packed = _share_packing(*tables)
    if kind in ("causal", "causal_bottom_right"):
        mask = None
    return attend_layer(layer, query, key, value, mask=mask, packed=packed)


def _share_packing(real: Any, padded: Tensor | None) -> Any:
    """One object for all layers that get the same tables, so that they are read once."""

    def make() -> SimpleNamespace:
        return SimpleNamespace(
            qkv_format="thd", cu_seqlens_q=real, cu_seqlens_q_padded=padded, made_for=padded
        )

    return once(("packing", id(padded)), real, make)
