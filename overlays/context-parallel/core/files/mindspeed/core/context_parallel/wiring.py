"""Context parallelism in the place of Megatron's DotProductAttention.

Upstream's local attention refuses context_parallel_size > 1; here it is computed by the algorithm
that `choice` finds. Tokens are where upstream puts them: `get_batch_on_this_cp_rank`, rotary
embeddings, position ids and loss masks are upstream's own, for every algorithm.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from mindspeed.core.context_parallel.attention import Attention, load_attention
from mindspeed.core.context_parallel.block_kernel import NpuKernel, require_operator
from mindspeed.core.context_parallel.choice import Choice, choose
from mindspeed.core.context_parallel.exchange import ProcessGroup
from mindspeed.core.context_parallel.groups import find_groups
from mindspeed.core.context_parallel.masks import is_causal, read_rows
from mindspeed.core.context_parallel.online_softmax import BNSD, SBND, TND
from mindspeed.core.context_parallel.packing import read_starts
from mindspeed.core.context_parallel.problem import Problem
from torch import Tensor

_CAUSAL = ("causal", "padding_causal", "causal_bottom_right")
_FULL = ("no_mask", "padding")


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
    _refuse_unsupported(module)
    require_operator()
    algorithm = load_attention(choice)

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
        if attention_bias is not None:
            raise ValueError("context parallelism takes no attention_bias")
        return _attend(
            module, query, key, value, attention_mask, packed_seq_params, choice, algorithm
        )

    return attend


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    packed: Any,
    choice: Choice,
    algorithm: Attention,
) -> Tensor:
    """[l, b, n, d] to [l, b, n * v]; packed [l, n, d] to [l, n * v]."""
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
    groups = find_groups(_find_group(module), choice)
    dropout = module.attention_dropout.p if module.training else 0.0
    problem = _pose(module, query, mask, packed, choice, groups.whole.rank(), 1.0 - dropout)
    with _fork_random_state(module, dropout):
        out = algorithm(query, key, value, problem, choice=choice, groups=groups)
    return out.reshape(*out.shape[:-2], -1)


def _pose(
    module: Any,
    query: Tensor,
    mask: Tensor | None,
    packed: Any,
    choice: Choice,
    rank: int,
    keep_prob: float,
) -> Problem:
    kind = module.attn_mask_type.name
    length = len(query) * choice.size
    scale = module.softmax_scale
    if module.config.apply_query_key_layer_scaling:
        scale *= module.layer_number  # upstream divides here and multiplies in its softmax
    if packed is not None:
        if kind not in _CAUSAL + _FULL:
            raise ValueError(f"attn_mask_type {kind} says nothing about packed sequences")
        if choice.bnsd:
            raise ValueError("--megatron-cp-in-bnsd: packed sequences have a layout of their own")
        starts = read_starts(packed, length=length, num_ranks=choice.size, causal=kind in _CAUSAL)
        kernel = NpuKernel(TND, scale, keep_prob)
        return Problem(kernel, "causal" if kind in _CAUSAL else "full", starts, packed=True)
    if length % (2 * choice.size) or len(query) % 2:
        raise ValueError(
            f"{len(query)} rows on each of {choice.size} context-parallel ranks: the sequence must "
            f"be a multiple of {2 * choice.size}"
        )
    problem = Problem(
        NpuKernel(BNSD if choice.bnsd else SBND, scale, keep_prob), "full", (0, length)
    )
    if mask is None or (choice.mask_type == "causal" and kind in _CAUSAL):
        if kind not in (*_CAUSAL, "no_mask"):
            raise ValueError(f"attn_mask_type {kind} needs an attention_mask, there is none")
        return _with(problem, "causal" if kind in _CAUSAL else "full", None)
    rows = read_rows(mask, problem.place(choice.size), rank)
    if (
        choice.mask_type == ""
        and kind in _CAUSAL
        and is_causal(rows, problem.place(choice.size), rank)
    ):
        return _with(problem, "causal", None)
    return _with(problem, "given", rows)


def _with(problem: Problem, kind: Any, mask: Tensor | None) -> Problem:
    return Problem(problem.kernel, kind, problem.starts, mask=mask)


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


def _refuse_unsupported(module: Any) -> None:
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
