"""The arithmetic of npu_fusion_attention: softmax with statistics, and its gradient.

With s the scaled, biased scores, masked ones -inf, and one more column `sink` where given:

    m = max(s, sink)      l = sum exp(s - m) + exp(sink - m)      p = exp(s - m) / l
    out = (p * keep / keep_prob) V

    dp = (dy V^T) * keep / keep_prob      delta = sum(dy * out)      ds = p (dp - delta)
    dV = (p * keep / keep_prob)^T dy      dQ = scale ds K            dK = scale ds^T Q
    dsink = -sum exp(sink - m) / l * delta

The gradient takes m, l and out from its caller, as the device does: ring attention hands it one
block of keys with the statistics of all blocks.

Rows with nothing to attend to: out = 0, m = the lowest, l = the highest float32, so that such a
block has no weight when it is merged with others.

Everything is float32 and handled in blocks of heads and query rows, so that long sequences fit.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ascend_sim.kernels.attention_layout import (
    AttentionShape,
    Sequence,
    output_sizes,
    stats_sizes,
    view_keys,
    view_queries,
    view_stats,
)
from ascend_sim.kernels.attention_mask import Masking
from ascend_sim.kernels.attention_pse import Pse

_BLOCK_ELEMENTS = 1 << 22
_LOWEST = torch.finfo(torch.float32).min
_HIGHEST = torch.finfo(torch.float32).max


@dataclass(frozen=True)
class Problem:
    """One checked call. `keep` is the flat dropout mask over all scores (true keeps), or None."""

    query: Tensor
    key: Tensor
    value: Tensor
    shape: AttentionShape
    masking: Masking
    pse: Pse | None
    sink: Tensor | None
    scale: float
    keep_prob: float
    keep: Tensor | None
    softmax_layout: str


@dataclass(frozen=True)
class _Block:
    """Some key heads, their query heads, and some query rows of one sequence."""

    sequence: Sequence
    kv_heads: slice
    heads: slice
    rows: slice

    @property
    def num_kv_heads(self) -> int:
        return int(self.kv_heads.stop - self.kv_heads.start)


@dataclass(frozen=True)
class Gradients:
    """The results of `attend_backward`, in the dtypes of the inputs; sink float32."""

    query: Tensor
    key: Tensor
    value: Tensor
    pse: Tensor | None
    sink: Tensor | None


def _blocks(shape: AttentionShape, sequence: Sequence) -> Iterator[_Block]:
    """Cut one sequence so that a block has about `_BLOCK_ELEMENTS` scores."""
    group = shape.num_heads // shape.num_kv_heads
    row_scores = max(1, group * sequence.num_keys)
    num_rows = max(1, min(sequence.num_queries, _BLOCK_ELEMENTS // row_scores))
    num_heads = max(1, _BLOCK_ELEMENTS // (row_scores * num_rows))
    for head in range(0, shape.num_kv_heads, num_heads):
        stop = min(head + num_heads, shape.num_kv_heads)
        for row in range(0, sequence.num_queries, num_rows):
            rows = slice(row, min(row + num_rows, sequence.num_queries))
            yield _Block(sequence, slice(head, stop), slice(head * group, stop * group), rows)


def _grouped(block: _Block, x: Tensor) -> Tensor:
    """[heads, rows, w] as [kv heads, group * rows, w]: the queries that share a key head."""
    kv_heads = block.num_kv_heads
    return x.reshape(kv_heads, x.shape[0] // kv_heads * x.shape[1], x.shape[2])


def _scores(problem: Problem, block: _Block, query: Tensor, key: Tensor) -> Tensor:
    """Scaled, biased, masked scores [heads, rows, Skv] of float32 `query` and `key` blocks."""
    sequence, heads, rows = block.sequence, block.heads, block.rows
    scores = _grouped(block, query) @ key.transpose(1, 2)
    scores = scores.view(query.shape[0], query.shape[1], key.shape[1])
    pse = problem.pse
    if pse is not None and pse.added_before_scale:
        scores += pse.block(sequence, heads, rows)
    scores *= problem.scale
    if pse is not None and not pse.added_before_scale:
        scores += pse.block(sequence, heads, rows)
    masked = problem.masking.find_masked(sequence, heads, rows)
    return scores if masked is None else scores.masked_fill_(masked, -torch.inf)


def _dropout_weight(problem: Problem, block: _Block) -> Tensor | None:
    """keep / keep_prob of one block, float32 [heads, rows, Skv]."""
    if problem.keep is None:
        return None
    sequence, num_heads = block.sequence, problem.shape.num_heads
    length = num_heads * sequence.num_queries * sequence.num_keys
    flat = problem.keep[sequence.score_start : sequence.score_start + length]
    scores = flat.view(num_heads, sequence.num_queries, sequence.num_keys)
    return scores[block.heads, block.rows].float() / problem.keep_prob


def _sink(problem: Problem, block: _Block) -> Tensor | None:
    """The sink logits of the block's heads, [heads, 1]."""
    return None if problem.sink is None else problem.sink[block.heads].unsqueeze(1)


def _softmax(scores: Tensor, sink: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """(p, m, l) over the last dim, in the memory of `scores`; m and l are [heads, rows]."""
    top = scores.amax(-1) if scores.shape[-1] else scores.new_full(scores.shape[:-1], -torch.inf)
    if sink is not None:
        top = torch.maximum(top, sink)
    blank = top == -torch.inf
    top = top.masked_fill(blank, _LOWEST)
    weights = scores.sub_(top.unsqueeze(-1)).exp_()
    total = weights.sum(-1)
    if sink is not None:
        total = total + torch.exp(sink - top)
    total = total.masked_fill(blank, _HIGHEST)
    return weights.div_(total.unsqueeze(-1)), top, total


def attend(problem: Problem) -> tuple[Tensor, Tensor, Tensor]:
    """Return (attention_out, softmax_max, softmax_sum); tokens outside all sequences are zero."""
    query, shape = problem.query, problem.shape
    out = query.new_zeros(output_sizes(shape, query))
    top = query.new_zeros(stats_sizes(shape, query), dtype=torch.float32)
    total = torch.zeros_like(top)
    for sequence in shape.sequences:
        views = [view_queries(tensor, shape, sequence) for tensor in (query, out)]
        key = view_keys(problem.key, shape, sequence).float()
        value = view_keys(problem.value, shape, sequence).float()
        stats = [view_stats(t, shape, sequence, problem.softmax_layout) for t in (top, total)]
        for block in _blocks(shape, sequence):
            part = views[0][block.heads, block.rows].float()
            scores = _scores(problem, block, part, key[block.kv_heads])
            weights, *found = _softmax(scores, _sink(problem, block))
            dropout = _dropout_weight(problem, block)
            if dropout is not None:
                weights *= dropout
            result = _grouped(block, weights) @ value[block.kv_heads]
            target = views[1][block.heads, block.rows]
            target.copy_(result.view(*weights.shape[:2], -1))
            for stat, values in zip(stats, found, strict=True):
                stat[block.heads, block.rows] = values.unsqueeze(-1)
    return out, top, total


def attend_backward(
    problem: Problem, dy: Tensor, out: Tensor, softmax_max: Tensor, softmax_sum: Tensor
) -> Gradients:
    """Return the gradients of `attend`'s first output, from the caller's statistics and output."""
    shape, pse, sink = problem.shape, problem.pse, problem.sink
    d_query, d_key, d_value = (
        torch.zeros_like(t, memory_format=torch.contiguous_format)
        for t in (problem.query, problem.key, problem.value)
    )
    d_pse = None if pse is None else torch.zeros_like(pse.tensor, dtype=torch.float32)
    d_sink = None if sink is None else torch.zeros_like(sink)
    top, total = softmax_max.contiguous(), softmax_sum.contiguous()
    for sequence in shape.sequences:
        views = [view_queries(t, shape, sequence) for t in (problem.query, dy, out, d_query)]
        key = view_keys(problem.key, shape, sequence).float()
        value = view_keys(problem.value, shape, sequence).float()
        dk, dv = torch.zeros_like(key), torch.zeros_like(value)
        stats = [view_stats(t, shape, sequence, problem.softmax_layout) for t in (top, total)]
        for block in _blocks(shape, sequence):
            kv, index = block.kv_heads, (block.heads, block.rows)
            q, g, o = (view[index].float() for view in views[:3])
            m, l = (stat[index][..., :1] for stat in stats)  # noqa: E741
            p = _scores(problem, block, q, key[kv]).sub_(m).exp_().div_(l)
            dp = (_grouped(block, g) @ value[kv].transpose(1, 2)).view_as(p)
            dropout = _dropout_weight(problem, block)
            if dropout is not None:
                dp *= dropout
            delta = (g * o).sum(-1, keepdim=True)
            ds = dp.sub_(delta).mul_(p)
            kept = p if dropout is None else p.mul_(dropout)
            dv[kv] += _grouped(block, kept).transpose(1, 2) @ _grouped(block, g)
            dk[kv] += problem.scale * _grouped(block, ds).transpose(1, 2) @ _grouped(block, q)
            dq = problem.scale * _grouped(block, ds) @ key[kv]
            views[3][index].copy_(dq.view_as(q))
            if pse is not None and d_pse is not None:
                bias = ds * problem.scale if pse.added_before_scale else ds
                pse.add_gradient(d_pse, bias, sequence, block.heads, block.rows)
            logit = _sink(problem, block)
            if logit is not None and d_sink is not None:
                share = torch.exp(logit.unsqueeze(-1) - m) / l
                d_sink[block.heads] -= (share * delta).sum((1, 2))
        view_keys(d_key, shape, sequence).copy_(dk)
        view_keys(d_value, shape, sequence).copy_(dv)
    if pse is not None and d_pse is not None:
        d_pse = d_pse.to(pse.tensor.dtype)
    return Gradients(d_query, d_key, d_value, d_pse, d_sink)
