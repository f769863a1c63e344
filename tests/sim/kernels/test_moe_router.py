"""Routing around the experts against loops in float64."""

import pytest
import torch
from torch import Tensor

from ascend_sim.kernels import moe_router as router

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def close(actual: Tensor, expected: Tensor) -> None:
    bound = TOLERANCE[actual.dtype]
    torch.testing.assert_close(actual.double(), expected.double(), rtol=bound, atol=bound)


def choices(num_tokens: int, topk: int, experts: int) -> Tensor:
    rows = [torch.randperm(experts)[:topk] for _ in range(num_tokens)]
    return torch.stack(rows).to(torch.int32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("active_num", [0, 2, 5, 99])
@pytest.mark.parametrize("topk", [1, 3])
def test_init_routing_sorts_copies_and_says_where_they_went(
    dtype: torch.dtype, active_num: int, topk: int
) -> None:
    torch.manual_seed(0)
    x, expert_idx = torch.randn(5, 4).to(dtype), choices(5, topk, 6)
    row_idx = torch.arange(5 * topk, dtype=torch.int32).reshape(topk, 5).T.contiguous()
    copies, places, experts = router.init_routing(x, row_idx, expert_idx, active_num)
    pairs = [(int(expert_idx[t, j]), t, j) for t in range(5) for j in range(topk)]
    ordered = sorted(pairs, key=lambda pair: pair[0])
    assert experts.tolist() == [expert for expert, _, _ in ordered]
    kept = ordered[: min(5, active_num) * topk]
    assert copies.shape == (len(kept), 4)
    for row, (_, token, _) in zip(copies, kept, strict=True):
        assert torch.equal(row, x[token])
    for place, (_, token, choice) in enumerate(ordered):
        assert places[choice * 5 + token] == place
    assert places.dtype == experts.dtype == torch.int32


def test_init_routing_gives_what_the_page_shows() -> None:
    x = torch.tensor([[0.1] * 4, [0.2] * 4, [0.3] * 4])
    row_idx = torch.tensor([[0, 3], [1, 4], [2, 5]], dtype=torch.int32)
    expert_idx = torch.tensor([[1, 2], [0, 1], [0, 2]], dtype=torch.int32)
    copies, places, experts = router.init_routing(x, row_idx, expert_idx, 3)
    assert experts.tolist() == [0, 0, 1, 1, 2, 2]
    assert [round(float(value), 1) for value in copies[:, 0]] == [0.2, 0.3, 0.1, 0.2, 0.1, 0.3]
    assert places.tolist() == [2, 0, 1, 4, 3, 5]


@pytest.mark.parametrize("dtype", [*DTYPES, torch.int8])
@pytest.mark.parametrize("span", [[0, 6], [2, 5], [5, 6]])
@pytest.mark.parametrize("row_idx_type", [0, 1])
@pytest.mark.parametrize("count_type", [1, 2])
@pytest.mark.parametrize("active_num", [-1, 0, 3])
def test_init_routing_v2_serves_a_range_of_experts(
    dtype: torch.dtype, span: list[int], row_idx_type: int, count_type: int, active_num: int
) -> None:
    torch.manual_seed(1)
    x = torch.randint(-50, 50, (4, 3)).to(dtype)
    expert_idx, scale = choices(4, 2, 6), torch.rand(4)
    copies, rows, counts, scales = router.init_routing_v2(
        x,
        expert_idx,
        scale=scale,
        active_num=active_num,
        expert_num=6,
        expert_tokens_num_type=count_type,
        expert_tokens_num_flag=True,
        active_expert_range=span,
        row_idx_type=row_idx_type,
    )
    flat = expert_idx.flatten().tolist()
    ordered = [i for e in range(*span) for i, expert in enumerate(flat) if expert == e]
    kept = ordered[:active_num] if active_num > 0 else ordered
    assert copies.shape == (8 if active_num <= 0 else 3, 3)
    assert torch.equal(copies[: len(kept)], x[[i // 2 for i in kept]])
    assert torch.equal(scales[: len(kept)], scale[[i // 2 for i in kept]])
    if row_idx_type == 1:
        assert rows[: len(ordered)].tolist() == ordered
    else:
        assert rows.tolist() == [ordered.index(i) if i in ordered else -1 for i in range(8)]
    expected = [(e, flat.count(e)) for e in range(*span)]
    if count_type == 1:
        assert counts.tolist() == [count for _, count in expected]
    else:
        used = [list(pair) for pair in expected if pair[1]]
        assert counts.tolist() == used + [[0, 0]] * (6 - len(used))
    assert counts.dtype == torch.int64


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("with_scales", [False, True])
@pytest.mark.parametrize("skips", [0, 1, 2])
@pytest.mark.parametrize("topk", [1, 3])
def test_finalize_routing_adds_expert_outputs_biases_and_residuals(
    dtype: torch.dtype, with_bias: bool, with_scales: bool, skips: int, topk: int
) -> None:
    torch.manual_seed(2)
    num_rows, experts = 4, 5
    rows = torch.randn(num_rows * topk, 3).to(dtype)
    dst = torch.randperm(num_rows * topk).to(torch.int32)
    expert_idx = choices(num_rows, topk, experts)
    bias = torch.randn(experts, 3).to(dtype) if with_bias else None
    scales = torch.rand(num_rows, topk).to(dtype) if with_scales else None
    skip2 = torch.randn(num_rows, 3).to(dtype) if skips > 0 else None
    skip1 = torch.randn(num_rows, 3).to(dtype) if skips > 1 else None
    out = router.finalize_routing(rows, skip1, skip2, bias, scales, dst, expert_idx, 0, topk)
    expected = torch.zeros(num_rows, 3, dtype=torch.float64)
    for token in range(num_rows):
        for skip in (skip1, skip2):
            if skip is not None:
                expected[token] += skip[token].double()
        for choice in range(topk):
            value = rows[int(dst[token + choice * num_rows])].double()
            if bias is not None:
                value = value + bias[int(expert_idx[token, choice])].double()
            weight = 1.0 if scales is None else float(scales[token, choice])
            expected[token] += weight * value
    close(out, expected)


def test_init_then_finalize_gives_every_token_back() -> None:
    torch.manual_seed(3)
    x, expert_idx = torch.randn(6, 4), choices(6, 2, 5)
    row_idx = torch.arange(12, dtype=torch.int32).reshape(2, 6).T.contiguous()
    copies, places, _ = router.init_routing(x, row_idx, expert_idx, 6)
    half = torch.full((6, 2), 0.5)
    close(router.finalize_routing(copies, None, None, None, half, places, None), x)


@pytest.mark.parametrize("experts", [[0, 0, 0, 1, 1, 2], [1, 4, 4], []])
def test_expert_tokens_are_cumulative(experts: list[int]) -> None:
    out = router.compute_expert_tokens(torch.tensor(experts, dtype=torch.int32), 5)
    assert out.tolist() == [sum(value <= expert for value in experts) for expert in range(5)]
    assert out.dtype == torch.int32


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("count_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("counts", [[[2, 0, 1], [1, 3, 0]], [[1, 1, 1]], [[0, 0, 4], [0, 0, 0]]])
def test_re_routing_puts_experts_first(
    dtype: torch.dtype, count_dtype: torch.dtype, counts: list[list[int]]
) -> None:
    labels = [
        (e, r) for r, row in enumerate(counts) for e, size in enumerate(row) for _ in range(size)
    ]
    tokens = torch.arange(len(labels) * 2).reshape(-1, 2).to(dtype)
    scales = torch.rand(len(labels))
    out, moved, origin, per_expert = router.re_routing(
        tokens, torch.tensor(counts, dtype=count_dtype), per_token_scales=scales
    )
    order = sorted(range(len(labels)), key=lambda row: labels[row])
    assert origin.tolist() == order
    assert torch.equal(out, tokens[order])
    assert torch.equal(moved, scales[order])
    assert per_expert.tolist() == [sum(row[e] for row in counts) for e in range(3)]
    assert per_expert.dtype == count_dtype


ROWS = torch.randn(4, 3)
INDEX = torch.zeros(4, dtype=torch.int32)


@pytest.mark.parametrize(
    ("call", "rule"),
    [
        (lambda: router.init_routing(ROWS, INDEX, INDEX, 1), "must be 2-D"),
        (
            lambda: router.init_routing(ROWS, INDEX[:, None], INDEX[:, None], -1),
            "active_num must not be negative",
        ),
        (
            lambda: router.init_routing(ROWS, INDEX[:, None], INDEX[:, None].long(), 1),
            "expert_idx must be int32",
        ),
        (lambda: router.init_routing_v2(ROWS, INDEX[:, None]), "expert_tokens_num_type"),
        (
            lambda: router.init_routing_v2(ROWS, INDEX[:, None], expert_tokens_num_type=1),
            "expert_tokens_num_flag",
        ),
        (
            lambda: router.init_routing_v2(
                ROWS,
                INDEX[:, None],
                expert_tokens_num_type=1,
                expert_tokens_num_flag=True,
                expert_num=3,
                active_expert_range=[2, 4],
            ),
            "active_expert_range must lie",
        ),
        (
            lambda: router.finalize_routing(ROWS, None, None, ROWS, None, INDEX, None),
            "bias needs export_for_source_row",
        ),
        (
            lambda: router.finalize_routing(ROWS, ROWS, None, None, None, INDEX, None),
            "skip1 must be None",
        ),
        (
            lambda: router.finalize_routing(ROWS, None, None, None, None, INDEX, None, 1),
            "drop_pad_mode must be 0",
        ),
        (lambda: router.compute_expert_tokens(torch.tensor([1, 0]).int(), 2), "must not decrease"),
        (lambda: router.compute_expert_tokens(INDEX, 0), r"must be in \[1, 2048\]"),
        (lambda: router.re_routing(ROWS.half(), INDEX[:, None]), "add up to the tokens"),
        (lambda: router.re_routing(ROWS, INDEX[:, None]), "tokens must be float16"),
    ],
)
def test_a_broken_rule_is_named(call, rule: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(RuntimeError, match=rule):
        call()


def test_quantising_modes_are_refused() -> None:
    with pytest.raises(NotImplementedError, match="quant_mode 1"):
        router.init_routing_v2(ROWS, INDEX[:, None], quant_mode=1)
