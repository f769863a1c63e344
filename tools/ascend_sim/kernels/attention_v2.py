"""npu_fusion_attention_v2 and its gradient: pse types, start indices, separate rotary parts.

query_rope [T, N, Dr] and key_rope add Qr Kr^T to Q K^T before the scale. That is attention over the
widths put side by side, and is computed so. Sparse mode 3 needs Sq <= Skv in every sequence here.
"""

import torch
from torch import Tensor

from ascend_sim.kernels.attention_call import (
    UNBOUNDED,
    or_empty,
    prepare,
    run_backward,
    run_forward,
)
from ascend_sim.kernels.attention_core import Problem
from ascend_sim.kernels.checks import refuse
from ascend_sim.kernels.rules import require
from ascend_sim.registry import kernel


def _join_rope(
    operator: str,
    query: Tensor,
    key: Tensor,
    query_rope: Tensor | None,
    key_rope: Tensor | None,
    *,
    input_layout: str,
    has_mask: bool,
    has_pse: bool,
    pse_type: int,
    keep_prob: float,
) -> tuple[Tensor, Tensor]:
    """Query and key with their rotary parts appended, after the documented checks."""
    if query_rope is None and key_rope is None:
        return query, key
    if query_rope is None or key_rope is None:
        refuse(operator, "query_rope and key_rope go together")
    require(operator, input_layout == "TND", "query_rope and key_rope need layout TND")
    require(operator, has_mask, "query_rope and key_rope need an atten_mask")
    plain = not has_pse and pse_type == 1 and keep_prob == 1.0
    require(operator, plain, "query_rope and key_rope exclude pse, other pse types and dropout")
    for name, tensor, beside in (("query", query, query_rope), ("key", key, key_rope)):
        types = tensor.dtype == beside.dtype == torch.bfloat16
        require(operator, types, f"{name} and {name}_rope must be bfloat16")
        fits = beside.dim() == tensor.dim() == 3 and beside.shape[:2] == tensor.shape[:2]
        require(operator, fits, f"{name}_rope must have the T and N of {name}")
        width = beside.shape[-1]
        rule = f"the width of {name}_rope, {width}, must be a multiple of 8, at most that of {name}"
        require(operator, width % 8 == 0 and 0 < width <= tensor.shape[-1], rule)
    require(operator, query_rope.shape[-1] == key_rope.shape[-1], "the rope widths differ")
    return torch.cat([query, query_rope], -1), torch.cat([key, key_rope], -1)


def _check_right_down(operator: str, problem: Problem) -> None:
    """Mode 3 of version 2 takes no sequence with more queries than keys."""
    if problem.masking.mode == 3:
        longer = any(s.num_queries > s.num_keys for s in problem.shape.sequences)
        require(operator, not longer, "sparse_mode 3 needs Sq <= Skv in every sequence")


@kernel("npu_fusion_attention_v2", document="_op_plugin_docs.py: npu_fusion_attention_v2")
def npu_fusion_attention_v2(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    head_num: int,
    input_layout: str,
    *,
    pse: Tensor | None = None,
    padding_mask: Tensor | None = None,
    atten_mask: Tensor | None = None,
    query_rope: Tensor | None = None,
    key_rope: Tensor | None = None,
    scale: float = 1.0,
    keep_prob: float = 1.0,
    pre_tokens: int = UNBOUNDED,
    next_tokens: int = UNBOUNDED,
    inner_precise: int = 0,
    prefix: list[int] | None = None,
    actual_seq_qlen: list[int] | None = None,
    actual_seq_kvlen: list[int] | None = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    pse_type: int = 1,
    q_start_idx: list[int] | None = None,
    kv_start_idx: list[int] | None = None,
    softmax_layout: str = "",
    sink: Tensor | None = None,
    dropout_mask: Tensor | None = None,
    seed: int = 0,
    offset: int = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor, int, int, int]:
    """Attention; returns (out, softmax_max, softmax_sum, empty, seed, offset, numels)."""
    operator = "npu_fusion_attention_v2"
    joined_query, joined_key = _join_rope(
        operator,
        query,
        key,
        query_rope,
        key_rope,
        input_layout=input_layout,
        has_mask=atten_mask is not None,
        has_pse=pse is not None,
        pse_type=pse_type,
        keep_prob=keep_prob,
    )
    problem = prepare(
        operator,
        joined_query,
        joined_key,
        value,
        head_num,
        input_layout,
        pse=pse,
        padding_mask=padding_mask,
        atten_mask=atten_mask,
        scale=scale,
        keep_prob=keep_prob,
        pre=pre_tokens,
        next=next_tokens,
        inner_precise=inner_precise,
        prefix=prefix,
        actual_seq_qlen=actual_seq_qlen,
        actual_seq_kvlen=actual_seq_kvlen,
        sparse_mode=sparse_mode,
        softmax_layout=softmax_layout,
        sink=sink,
        pse_type=pse_type,
        q_start_idx=q_start_idx,
        kv_start_idx=kv_start_idx,
    )
    _check_right_down(operator, problem)
    return run_forward(operator, problem, dropout_mask, seed, offset)


@kernel("npu_fusion_attention_grad_v2", document="_op_plugin_docs.py: npu_fusion_attention_v2")
def npu_fusion_attention_grad_v2(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dy: Tensor,
    head_num: int,
    input_layout: str,
    *,
    pse: Tensor | None = None,
    padding_mask: Tensor | None = None,
    atten_mask: Tensor | None = None,
    softmax_max: Tensor | None = None,
    softmax_sum: Tensor | None = None,
    softmax_in: Tensor | None = None,
    attention_in: Tensor | None = None,
    query_rope: Tensor | None = None,
    key_rope: Tensor | None = None,
    scale_value: float = 1.0,
    keep_prob: float = 1.0,
    pre_tokens: int = UNBOUNDED,
    next_tokens: int = UNBOUNDED,
    inner_precise: int = 0,
    seed: int = 0,
    offset: int = 0,
    numels: int = 0,
    prefix: list[int] | None = None,
    actual_seq_qlen: list[int] | None = None,
    actual_seq_kvlen: list[int] | None = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    pse_type: int = 1,
    q_start_idx: list[int] | None = None,
    kv_start_idx: list[int] | None = None,
    softmax_layout: str = "",
    sink: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(dq, dk, dv, dpse, dq_rope, dk_rope, dsink); empty where the input was not given."""
    operator = "npu_fusion_attention_grad_v2"
    joined_query, joined_key = _join_rope(
        operator,
        query,
        key,
        query_rope,
        key_rope,
        input_layout=input_layout,
        has_mask=atten_mask is not None,
        has_pse=pse is not None,
        pse_type=pse_type,
        keep_prob=keep_prob,
    )
    problem = prepare(
        operator,
        joined_query,
        joined_key,
        value,
        head_num,
        input_layout,
        pse=pse,
        padding_mask=padding_mask,
        atten_mask=atten_mask,
        scale=scale_value,
        keep_prob=keep_prob,
        pre=pre_tokens,
        next=next_tokens,
        inner_precise=inner_precise,
        prefix=prefix,
        actual_seq_qlen=actual_seq_qlen,
        actual_seq_kvlen=actual_seq_kvlen,
        sparse_mode=sparse_mode,
        softmax_layout=softmax_layout,
        sink=sink,
        pse_type=pse_type,
        q_start_idx=q_start_idx,
        kv_start_idx=kv_start_idx,
    )
    _check_right_down(operator, problem)
    found = run_backward(
        operator, problem, dy, softmax_max, softmax_sum, attention_in, seed, offset
    )
    d_pse, d_sink = or_empty(found.pse, query), or_empty(found.sink, query, torch.float32)
    if query_rope is None:
        empty = query.new_empty(0)
        return found.query, found.key, found.value, d_pse, empty, key.new_empty(0), d_sink
    d_query, d_query_rope = torch.split(found.query, [query.shape[-1], query_rope.shape[-1]], -1)
    d_key, d_key_rope = torch.split(found.key, [key.shape[-1], query_rope.shape[-1]], -1)
    parts = [t.contiguous() for t in (d_query, d_key, d_query_rope, d_key_rope)]
    return parts[0], parts[1], found.value, d_pse, parts[2], parts[3], d_sink
