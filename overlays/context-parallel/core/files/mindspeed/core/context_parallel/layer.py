"""One layer's attention over a spread sequence, whatever module asks: pose the problem and run it.

Dims: l rows of this rank, b batch, n heads, g key heads, d and v widths.
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from mindspeed.core.context_parallel.attention import load_attention
from mindspeed.core.context_parallel.block_kernel import NpuKernel
from mindspeed.core.context_parallel.choice import Choice
from mindspeed.core.context_parallel.exchange import ProcessGroup
from mindspeed.core.context_parallel.groups import find_groups
from mindspeed.core.context_parallel.masks import is_causal, read_rows
from mindspeed.core.context_parallel.online_softmax import BNSD, SBND, TND
from mindspeed.core.context_parallel.packing import read_starts
from mindspeed.core.context_parallel.problem import Problem
from torch import Tensor

_CAUSAL = ("causal", "padding_causal", "causal_bottom_right", "padding_causal_bottom_right")
_FULL = ("no_mask", "padding")
_NEED_NO_TENSOR = ("causal", "causal_bottom_right", "no_mask")


@dataclass(frozen=True)
class Layer:
    """What a module says about its attention.

    Attributes:
        choice: how it is computed.
        kind: the name of Megatron's attn_mask_type.
        scale: of the scores.
        dropout: probability, 0 while not training.
        group: all context-parallel ranks.
        random_state: entered while dropout is drawn.
    """

    choice: Choice
    kind: str
    scale: float
    dropout: float
    group: ProcessGroup
    random_state: AbstractContextManager[Any]


def attend_layer(
    layer: Layer, query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None, packed: Any
) -> Tensor:
    """Attention of this rank's rows over the whole sequence.

    Args:
        layer: of the module.
        query: [l, b, n, d]; packed [l, n, d].
        key: [l, b, g, d]; packed [l, g, d].
        value: [l, b, g, v]; packed [l, g, v].
        mask: see `masks.read_rows`; None where the kind says it all.
        packed: PackedSeqParams, for packed sequences.

    Returns:
        [l, b, n * v]; packed [l, n * v].

    Raises:
        ValueError: lengths or a mask that cannot be.
    """
    choice = layer.choice
    if len(query) != len(key):
        raise ValueError(
            f"context parallelism is for self attention of equal lengths, there are {len(query)} "
            f"queries and {len(key)} keys"
        )
    if getattr(packed, "cp_group", None) is not None or getattr(packed, "local_cp_size", None):
        raise ValueError(
            "packed sequences with a context-parallel group of their own (hybrid_context_parallel, "
            "dynamic context parallelism) are not supported"
        )
    groups = find_groups(layer.group, choice)
    if packed is not None:
        problem = _pose_packed(layer, packed, length=len(query) * choice.size)
    else:
        problem = _pose(layer, mask, length=len(query) * choice.size)
    with layer.random_state:
        out = load_attention(choice)(query, key, value, problem, choice=choice, groups=groups)
    return out.reshape(*out.shape[:-2], -1)


def _pose_packed(layer: Layer, packed: Any, *, length: int) -> Problem:
    kind, choice = layer.kind, layer.choice
    if kind not in _CAUSAL + _FULL:
        raise ValueError(f"attn_mask_type {kind} says nothing about packed sequences")
    if choice.bnsd:
        raise ValueError("--megatron-cp-in-bnsd: packed sequences have a layout of their own")
    causal = kind in _CAUSAL
    starts = read_starts(packed, length=length, num_ranks=choice.size, causal=causal)
    kernel = NpuKernel(TND, layer.scale, 1.0 - layer.dropout)
    return Problem(kernel, "causal" if causal else "full", starts, packed=True)


def _pose(layer: Layer, mask: Tensor | None, *, length: int) -> Problem:
    kind, choice = layer.kind, layer.choice
    if length % (2 * choice.size):
        raise ValueError(
            f"{length // choice.size} rows on each of {choice.size} context-parallel ranks: the "
            f"sequence must be a multiple of {2 * choice.size}"
        )
    if choice.adapt.own_blocks:
        if mask is not None:
            raise ValueError(
                "--adaptive-cp-manually-set-mask-list: the blocks that were set are the mask, give "
                "no attention_mask"
            )
        return Problem(_make_kernel(layer), "given", (0, length))
    causal = kind in _CAUSAL
    kernel = _make_kernel(layer)
    plain = Problem(kernel, "causal" if causal else "full", (0, length))
    if mask is None and kind not in _NEED_NO_TENSOR:
        raise ValueError(f"attn_mask_type {kind} needs an attention_mask, there is none")
    if mask is None or (choice.mask_type == "causal" and causal):
        return plain
    if (mask.device.type == "cpu") != choice.adapt.mask_on_cpu:
        raise ValueError(
            f"attention_mask is on {mask.device.type}: masks are on the CPU with "
            "--attention-mask-on-cpu and on the device without it"
        )
    placement = plain.place(choice.size)
    rows = read_rows(mask, placement, layer.group.rank())
    if choice.mask_type == "" and causal and is_causal(rows, placement, layer.group):
        return plain
    return Problem(kernel, "given", (0, length), mask=rows)


def _make_kernel(layer: Layer) -> NpuKernel:
    return NpuKernel(BNSD if layer.choice.bnsd else SBND, layer.scale, 1.0 - layer.dropout)
