"""npu_ring_attention_update: blocks of keys merged must be attention over all keys."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from ascend_sim.kernels.attention import npu_fusion_attention, npu_fusion_attention_grad
from ascend_sim.kernels.ring import npu_ring_attention_update
from sim.kernels.numeric import DTYPES, assert_near, draw

ENDS = [3, 3, 8]


def run(
    layout: str, softmax_layout: str, query: Tensor, key: Tensor, value: Tensor
) -> list[Tensor]:
    """(out, max, sum) of attention with 4 heads; TND: two keys for every query."""
    arguments: dict[str, Any] = {}
    if layout == "TND":
        lengths = [key.shape[0] * end // 8 for end in ENDS]
        arguments = {
            "actual_seq_qlen": ENDS,
            "actual_seq_kvlen": lengths,
            "softmax_layout": softmax_layout,
        }
    return list(npu_fusion_attention(query, key, value, 4, layout, scale=0.1, **arguments)[:3])


def blocks(layout: str, dtype: torch.dtype) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """A query and two blocks of keys and values."""
    if layout == "SBH":
        query, shape = draw(5, 2, 12, dtype=dtype), (7, 2, 12)
    else:
        query, shape = draw(8, 4, 64, dtype=dtype), (8, 4, 64)
    keys = [draw(*shape, dtype=dtype, seed=s) for s in (1, 2)]
    return query, keys, [draw(*shape, dtype=dtype, seed=s) for s in (3, 4)]


def join(layout: str, parts: list[Tensor]) -> Tensor:
    """The blocks as one sequence of keys; TND: sequence by sequence."""
    if layout == "SBH":
        return torch.cat(parts)
    cut = [0, *ENDS]
    pieces = [part[a:b] for a, b in pairwise(cut) for part in parts]
    return torch.cat(pieces)


CASES = [("SBH", ""), ("TND", ""), ("TND", "SBH"), ("TND", "TND")]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("layout", "softmax_layout"), CASES)
def test_two_blocks_merge_to_the_whole(
    layout: str, softmax_layout: str, dtype: torch.dtype
) -> None:
    query, keys, values = blocks(layout, dtype)
    stored = "TND" if softmax_layout == "TND" else ""
    whole = run(layout, stored, query, join(layout, keys), join(layout, values))
    parts = [run(layout, stored, query, k, v) for k, v in zip(keys, values, strict=True)]
    starts = torch.tensor([0, *ENDS]) if layout == "TND" else None
    merged = npu_ring_attention_update(
        *parts[0],
        *parts[1],
        actual_seq_qlen=starts,
        input_layout=layout,
        input_softmax_layout=softmax_layout,
    )
    assert merged[0].dtype == dtype
    for found, wanted in zip(merged, whole, strict=True):
        # Each block's output was already rounded once.
        assert_near(found, wanted.double(), dtype=dtype)


def test_block_gradients_with_merged_statistics_add_up() -> None:
    query, keys, values = blocks("SBH", torch.float32)
    dy = draw(5, 2, 12, seed=6)
    key, value = join("SBH", keys), join("SBH", values)
    out, top, total = run("SBH", "", query, key, value)

    def grad(k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        return npu_fusion_attention_grad(
            query,
            k,
            v,
            dy,
            4,
            "SBH",
            scale_value=0.1,
            softmax_max=top,
            softmax_sum=total,
            attention_in=out,
        )

    whole = grad(key, value)
    parts = [grad(k, v) for k, v in zip(keys, values, strict=True)]
    assert_near(parts[0][0] + parts[1][0], whole[0].double())
    for number in (1, 2):
        assert_near(torch.cat([parts[0][number], parts[1][number]]), whole[number].double())


def test_a_block_that_saw_nothing_leaves_the_other_unchanged() -> None:
    query, keys, values = blocks("SBH", torch.float32)
    seen = run("SBH", "", query, keys[0], values[0])
    mask = torch.ones(5, 7, dtype=torch.bool)
    blank = npu_fusion_attention(
        query, keys[1], values[1], 4, "SBH", atten_mask=mask, inner_precise=2
    )[:3]
    for first, second in ((seen, blank), (blank, seen)):
        merged = npu_ring_attention_update(*first, *second)
        for found, wanted in zip(merged, seen, strict=True):
            assert_near(found, wanted.double())
    twice = npu_ring_attention_update(*blank, *blank)
    merged = npu_ring_attention_update(*twice, *seen)
    assert_near(merged[0], seen[0].double())


OUT, STATS = torch.ones(5, 2, 12), torch.ones(2, 4, 5, 8)
VARLEN_OUT, VARLEN_STATS = torch.ones(8, 4, 64), torch.ones(8, 4, 8)


@pytest.mark.parametrize(
    ("out", "stats", "arguments", "rule"),
    [
        (OUT, STATS, {"input_layout": "BSH"}, "input_layout must be SBH or TND"),
        (OUT, STATS, {"input_softmax_layout": "NTD"}, "input_softmax_layout must be"),
        (OUT.view(5, 2, 4, 3), STATS, {}, "3 dims"),
        (OUT, STATS.view(8, 5, 8), {}, "4 dims"),
        (OUT, STATS[..., :1], {}, "must be 8"),
        (OUT, STATS.double(), {}, "must be float32"),
        (OUT.double(), STATS, {}, "float16, bfloat16 or float32"),
        (OUT[:4], STATS, {}, "do not belong to the output"),
        (VARLEN_OUT, VARLEN_STATS, {"input_layout": "TND"}, "TND needs actual_seq_qlen"),
        (VARLEN_OUT[..., :8], VARLEN_STATS, {"input_layout": "TND"}, "D a multiple of 64"),
        (VARLEN_OUT[:3], VARLEN_STATS, {"input_layout": "TND"}, "do not belong to the output"),
        (
            VARLEN_OUT,
            VARLEN_STATS,
            {"input_layout": "TND", "actual_seq_qlen": torch.tensor([0, 8], dtype=torch.int32)},
            "must be int64",
        ),
        (
            VARLEN_OUT,
            VARLEN_STATS,
            {"input_layout": "TND", "actual_seq_qlen": torch.tensor([3, 8])},
            "cumulative from 0 to 8",
        ),
    ],
)
def test_inputs_outside_the_document_are_refused(
    out: Tensor, stats: Tensor, arguments: dict[str, Any], rule: str
) -> None:
    with pytest.raises(RuntimeError, match=rule):
        npu_ring_attention_update(out, stats, stats, out, stats, stats, **arguments)
