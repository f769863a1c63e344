"""npu_fusion_attention and its gradient.

    out = dropout(softmax(mask(scale * (Q K^T + pse)))) V

softmax_max and softmax_sum are float32 [B, N, Sq, 8] or [T, N, 8], each value eight times; in TND
they lie head by head inside a sequence unless softmax_layout is "TND" (see attention_layout).
Dropout is described in attention_call, masks in attention_mask.

Versions 2 and 3 (attention_v2, attention_v3) differ in arguments, not in arithmetic.
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
from ascend_sim.registry import kernel


@kernel("npu_fusion_attention", document="torch_npu-npu_fusion_attention.md")
def npu_fusion_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    head_num: int,
    input_layout: str,
    pse: Tensor | None = None,
    padding_mask: Tensor | None = None,
    atten_mask: Tensor | None = None,
    scale: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = UNBOUNDED,
    next_tockens: int = UNBOUNDED,
    inner_precise: int = 0,
    prefix: list[int] | None = None,
    actual_seq_qlen: list[int] | None = None,
    actual_seq_kvlen: list[int] | None = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    softmax_layout: str = "",
    sink: Tensor | None = None,
    dropout_mask: Tensor | None = None,
    seed: int = 0,
    offset: int = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor, int, int, int]:
    """Attention; returns (out, softmax_max, softmax_sum, empty, seed, offset, numels)."""
    operator = "npu_fusion_attention"
    problem = prepare(
        operator,
        query,
        key,
        value,
        head_num,
        input_layout,
        pse=pse,
        padding_mask=padding_mask,
        atten_mask=atten_mask,
        scale=scale,
        keep_prob=keep_prob,
        pre=pre_tockens,
        next=next_tockens,
        inner_precise=inner_precise,
        prefix=prefix,
        actual_seq_qlen=actual_seq_qlen,
        actual_seq_kvlen=actual_seq_kvlen,
        sparse_mode=sparse_mode,
        softmax_layout=softmax_layout,
        sink=sink,
    )
    return run_forward(operator, problem, dropout_mask, seed, offset)


@kernel("npu_fusion_attention_grad", document="torch_npu-npu_fusion_attention.md")
def npu_fusion_attention_grad(
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
    scale_value: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = UNBOUNDED,
    next_tockens: int = UNBOUNDED,
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
    softmax_layout: str = "",
    sink: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(dq, dk, dv, dpse, dsink); the last two are empty where pse or sink was not given."""
    operator = "npu_fusion_attention_grad"
    problem = prepare(
        operator,
        query,
        key,
        value,
        head_num,
        input_layout,
        pse=pse,
        padding_mask=padding_mask,
        atten_mask=atten_mask,
        scale=scale_value,
        keep_prob=keep_prob,
        pre=pre_tockens,
        next=next_tockens,
        inner_precise=inner_precise,
        prefix=prefix,
        actual_seq_qlen=actual_seq_qlen,
        actual_seq_kvlen=actual_seq_kvlen,
        sparse_mode=sparse_mode,
        softmax_layout=softmax_layout,
        sink=sink,
    )
    found = run_backward(
        operator, problem, dy, softmax_max, softmax_sum, attention_in, seed, offset
    )
    d_sink = or_empty(found.sink, query, torch.float32)
    return found.query, found.key, found.value, or_empty(found.pse, query), d_sink
