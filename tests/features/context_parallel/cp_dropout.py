"""Put the dropout masks of every call of the operator together into that of the whole attention."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

Call = tuple[Tensor, Tensor, int, float, int, int]
"""Queries and keys as given, heads, keep_prob, seed, offset."""


@contextmanager
def record(module: Any) -> Iterator[list[Call]]:
    """Note every forward call of `module.npu_fusion_attention` (layout SBH)."""
    calls: list[Call] = []
    real = module.npu_fusion_attention

    def attend(q: Tensor, k: Tensor, v: Tensor, heads: int, layout: str, **options: Any) -> Any:
        assert layout == "SBH"
        found = real(q, k, v, heads, layout, **options)
        calls.append(
            (q.detach().cpu(), k.detach().cpu(), heads, options["keep_prob"], found[4], found[5])
        )
        return found

    module.npu_fusion_attention = attend
    try:
        yield calls
    finally:
        module.npu_fusion_attention = real


def assemble(calls: list[Call], whole_q: Tensor, whole_k: Tensor) -> Tensor:
    """Factors of dropout, 0 or 1 / keep_prob: [b, n, s, s]; 0 where this rank computed nothing.

    Which rows and heads a call was about is read off its numbers, which are all different.

    Args:
        calls: of one rank.
        whole_q: [s, b, n, d], all queries.
        whole_k: [s, b, g, d], all keys.
    """
    from ascend_sim import rng
    from ascend_sim.kernels.dropout_mask import round_probability

    length, batch, heads, _ = whole_q.shape
    factors = torch.zeros(batch, heads, length, length)
    for q, k, num_heads, keep_prob, seed, offset in calls:
        rows, first = _find(q, whole_q)
        columns, _ = _find(k, whole_k)
        size = (batch, num_heads, len(rows), len(columns))
        probability = round_probability(keep_prob)
        count = batch * num_heads * len(rows) * len(columns)
        keep = rng.keep_mask((count,), probability, seed, offset).cpu().view(size)
        own = torch.arange(first, first + num_heads)
        held = factors[:, own][:, :, rows]
        held[..., columns] = keep.float() / keep_prob
        patch = factors[:, own]
        patch[:, :, rows] = held
        factors[:, own] = patch
    return factors


def _find(x: Tensor, whole: Tensor) -> tuple[Tensor, int]:
    """The rows of `whole` that x [s, b, n * d] has, and its first head."""
    same = x[:, 0, 0][:, None, None] == whole[None, :, 0, :, 0]
    assert (same.flatten(1).sum(1) == 1).all()
    found = same.flatten(1).int().argmax(1)
    heads = whole.shape[2]
    return found // heads, int(found[0] % heads)
