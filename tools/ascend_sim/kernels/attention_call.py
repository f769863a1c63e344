"""What all versions of npu_fusion_attention share: checks, dropout, the call of the arithmetic.

Dropout: where keep_prob < 1, the mask is `rng.keep_mask` of (seed, offset) over all scores in
[B, N, Sq, Skv] order (TND: sequence after sequence). A seed of 0 draws from the device's generator.
The gradient makes the same mask again from the returned seed and offset. A `dropout_mask` from
outside must be the one that _npu_dropout_gen_mask makes of them, since the gradient never sees it.
"""

from dataclasses import replace

import torch
from torch import Tensor

from ascend_sim import rng
from ascend_sim.kernels.attention_core import Gradients, Problem, attend, attend_backward
from ascend_sim.kernels.attention_layout import output_sizes, parse_shape, stats_sizes
from ascend_sim.kernels.attention_mask import parse_masking
from ascend_sim.kernels.attention_pse import parse_pse
from ascend_sim.kernels.checks import refuse
from ascend_sim.kernels.dropout_mask import draw_seed, pack_bits, round_probability
from ascend_sim.kernels.rules import require

UNBOUNDED = 2147483647
"""The default of pre_tockens and next_tockens: no limit."""


def prepare(
    operator: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    head_num: int,
    input_layout: str,
    *,
    pse: Tensor | None,
    padding_mask: Tensor | None,
    atten_mask: Tensor | None,
    scale: float,
    keep_prob: float,
    pre: int,
    next: int,
    inner_precise: int,
    prefix: list[int] | None,
    actual_seq_qlen: list[int] | None,
    actual_seq_kvlen: list[int] | None,
    sparse_mode: int,
    softmax_layout: str,
    sink: Tensor | None,
    pse_type: int = 1,
    q_start_idx: list[int] | None = None,
    kv_start_idx: list[int] | None = None,
) -> Problem:
    """Check the arguments that forward and gradient share; the dropout mask is still missing."""
    require(operator, padding_mask is None, "padding_mask is reserved and must be None")
    require(operator, 0.0 < keep_prob <= 1.0, f"keep_prob must be in (0, 1], not {keep_prob}")
    shape = parse_shape(
        operator,
        query,
        key,
        value,
        head_num=head_num,
        input_layout=input_layout,
        actual_seq_qlen=actual_seq_qlen,
        actual_seq_kvlen=actual_seq_kvlen,
    )
    in_tnd = softmax_layout == "TND" and shape.layout == "TND"
    rule = f"softmax_layout must be '', or 'TND' with layout TND, not {softmax_layout!r}"
    require(operator, softmax_layout == "" or in_tnd, rule)
    masking = parse_masking(
        operator,
        shape,
        atten_mask=atten_mask,
        sparse_mode=sparse_mode,
        pre=pre,
        next=next,
        prefix=prefix,
        inner_precise=inner_precise,
    )
    bias = parse_pse(
        operator,
        shape,
        query,
        pse=pse,
        pse_type=pse_type,
        sparse_mode=sparse_mode,
        q_start_idx=q_start_idx,
        kv_start_idx=kv_start_idx,
    )
    if sink is not None:
        fits = sink.dtype == torch.float32 and tuple(sink.shape) == (head_num,)
        require(operator, fits, f"sink must be float32 of shape [{head_num}]")
    return Problem(
        query, key, value, shape, masking, bias, sink, scale, keep_prob, None, softmax_layout
    )


def _with_dropout(problem: Problem, seed: int, offset: int) -> Problem:
    """Add the dropout mask of (seed, offset)."""
    if problem.keep_prob == 1.0:
        return problem
    keep_prob = round_probability(problem.keep_prob)
    keep = rng.keep_mask((problem.shape.numels,), keep_prob, seed, offset)
    return replace(problem, keep=keep)


def run_forward(
    operator: str, problem: Problem, dropout_mask: Tensor | None, seed: int, offset: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, int, int, int]:
    """Settle seed and offset, attend, and return the results of v1 and v2."""
    drops = problem.keep_prob < 1.0
    if drops and dropout_mask is None and seed == 0:
        seed, offset = draw_seed()
    problem = _with_dropout(problem, seed, offset)
    if dropout_mask is not None:
        rule = "dropout_mask must be the mask that _npu_dropout_gen_mask makes of seed and offset"
        same = problem.keep is not None and torch.equal(dropout_mask, pack_bits(problem.keep))
        require(operator, same or not drops, rule)
    out, top, total = attend(problem)
    return out, top, total, problem.query.new_empty(0), seed, offset, problem.shape.numels


def run_backward(
    operator: str,
    problem: Problem,
    dy: Tensor,
    softmax_max: Tensor | None,
    softmax_sum: Tensor | None,
    attention_in: Tensor | None,
    seed: int,
    offset: int,
) -> Gradients:
    """Check what the forward saved and return the gradients."""
    if softmax_max is None or softmax_sum is None or attention_in is None:
        refuse(operator, "softmax_max, softmax_sum and attention_in of the forward are needed")
    expected = output_sizes(problem.shape, problem.query)
    for name, tensor in (("dy", dy), ("attention_in", attention_in)):
        rule = f"{name} must have shape {expected} and dtype {problem.query.dtype}"
        fits = list(tensor.shape) == expected and tensor.dtype == problem.query.dtype
        require(operator, fits, rule)
    stats = stats_sizes(problem.shape, problem.query)
    for name, tensor in (("softmax_max", softmax_max), ("softmax_sum", softmax_sum)):
        fits = list(tensor.shape) == stats and tensor.dtype == torch.float32
        require(operator, fits, f"{name} must be float32 of shape {stats}")
    problem = _with_dropout(problem, seed, offset)
    return attend_backward(problem, dy, attention_in, softmax_max, softmax_sum)


def or_empty(tensor: Tensor | None, like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """The gradient, or an empty tensor where the input was not given."""
    return like.new_empty(0, dtype=dtype or like.dtype) if tensor is None else tensor
