"""Gating against loops over tokens and experts in float64, gradients against autograd of those."""

import math

import pytest
import torch
from torch import Tensor

from ascend_sim.kernels import moe_gating as gating

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
TOLERANCE = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def close(actual: Tensor, expected: Tensor) -> None:
    bound = TOLERANCE[actual.dtype]
    torch.testing.assert_close(actual.double(), expected.double(), rtol=bound, atol=bound)


def softmax_row(row: list[float]) -> list[float]:
    top = max(row)
    exps = [math.exp(value - top) for value in row]
    return [value / sum(exps) for value in exps]


def best(row: list[float], k: int) -> list[int]:
    return sorted(range(len(row)), key=lambda index: -row[index])[:k]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", [1, 3, 5])
@pytest.mark.parametrize("shape", [(4, 5), (2, 3, 5), (1, 5)])
def test_softmax_then_top_k(dtype: torch.dtype, k: int, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape).to(dtype)
    picked, experts, rows = gating.gating_top_k_softmax(x, k=k)
    flat = x.double().reshape(-1, 5).tolist()
    scores = [softmax_row(row) for row in flat]
    chosen = [best(row, k) for row in scores]
    # The kernel ranks fp32 scores; no two logits of this seed tie after rounding.
    assert experts.reshape(-1, k).tolist() == chosen
    expected = [[row[expert] for expert in mine] for row, mine in zip(scores, chosen, strict=True)]
    close(picked.reshape(-1, k), torch.tensor(expected, dtype=torch.float64))
    assert picked.dtype == dtype
    assert rows.shape == (*shape[:-1], k)
    assert experts.dtype == rows.dtype == torch.int32
    for token, row in enumerate(rows.reshape(-1, k).tolist()):
        assert row == [choice * len(flat) + token for choice in range(k)]


def test_finished_rows_get_an_expert_past_the_last() -> None:
    finished = torch.tensor([False, True])
    for experts in (
        gating.gating_top_k_softmax(torch.randn(2, 4), finished, 2)[1],
        gating.gating_top_k_softmax_v2(torch.randn(2, 4), finished=finished, k=2)[1],
    ):
        assert experts[1].tolist() == [4, 4]
        assert max(experts[0].tolist()) < 4


def test_equal_scores_keep_the_order_of_the_experts() -> None:
    _, experts, _ = gating.gating_top_k_softmax(torch.zeros(1, 6), k=4)
    assert experts.tolist() == [[0, 1, 2, 3]]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("renorm", [0, 1])
@pytest.mark.parametrize("output_softmax", [False, True])
def test_v2_normalises_before_or_after_the_choice(
    dtype: torch.dtype, renorm: int, output_softmax: bool
) -> None:
    torch.manual_seed(1)
    x = torch.randn(3, 6).to(dtype)
    picked, experts, scores = gating.gating_top_k_softmax_v2(
        x, k=2, renorm=renorm, output_softmax=output_softmax
    )
    for row, mine, values in zip(
        x.double().tolist(), experts.tolist(), picked.double().tolist(), strict=True
    ):
        assert mine == best(row, 2)
        if renorm:
            expected = softmax_row([row[expert] for expert in mine])
        else:
            expected = [softmax_row(row)[expert] for expert in mine]
        assert values == pytest.approx(expected, rel=TOLERANCE[dtype])
    if renorm == 0 and output_softmax:
        assert scores.dtype == torch.float32
        torch.testing.assert_close(scores.sum(-1), torch.ones(3))
    else:
        assert scores.shape == (0,)


def top_k_by_loop(
    x: Tensor, k: int, bias: Tensor | None, k_group: int, groups: int, mode: int, sigmoid: bool
) -> tuple[Tensor, list[list[int]]]:
    """Differentiable y (factor 2.5) and the chosen experts."""
    out, chosen = [], []
    for row in x:
        scores = 1 / (1 + torch.exp(-row)) if sigmoid else torch.exp(row) / torch.exp(row).sum()
        ranked = (scores if bias is None else scores + bias).tolist()
        size = len(ranked) // groups
        parts = [ranked[group * size : (group + 1) * size] for group in range(groups)]
        marks = [sum(sorted(part)[-2:]) if mode else max(part) for part in parts]
        kept = best(marks, k_group)
        allowed = [v if i // size in kept else -math.inf for i, v in enumerate(ranked)]
        mine = best(allowed, k)
        picked = scores[mine]
        out.append(2.5 * (picked / picked.sum() if sigmoid else picked))
        chosen.append(mine)
    return torch.stack(out), chosen


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sigmoid", [False, True])
@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize(("k", "k_group", "groups"), [(1, 1, 1), (4, 2, 4), (3, 1, 4), (12, 4, 4)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_grouped_top_k(
    dtype: torch.dtype, sigmoid: bool, mode: int, k: int, k_group: int, groups: int, with_bias: bool
) -> None:
    torch.manual_seed(2)
    x = torch.randn(5, 12).to(dtype)
    bias = torch.rand(12).to(dtype) if with_bias else None
    double_bias = None if bias is None else bias.double()
    leaf = x.double().requires_grad_()
    expected, chosen = top_k_by_loop(leaf, k, double_bias, k_group, groups, mode, sigmoid)
    y, experts, scores = gating.gating_top_k(
        x,
        k,
        bias=bias,
        k_group=k_group,
        group_count=groups,
        group_select_mode=mode,
        norm_type=int(sigmoid),
        out_flag=True,
        routed_scaling_factor=2.5,
    )
    assert experts.tolist() == chosen
    assert y.dtype == dtype
    assert scores.dtype == torch.float32
    close(y, expected.detach())
    if sigmoid:
        grad = torch.randn(5, k).to(dtype)
        torch.autograd.backward(expected, grad.double())
        grad_x = gating.gating_top_k_backward(
            scores, grad, experts, norm_type=1, routed_scaling_factor=2.5
        )
        assert leaf.grad is not None
        assert grad_x.dtype == dtype
        torch.testing.assert_close(
            grad_x.double(), leaf.grad, rtol=2 * TOLERANCE[dtype], atol=1e-6 + TOLERANCE[dtype] / 2
        )


def test_scores_that_were_not_asked_for_are_nan() -> None:
    _, _, scores = gating.gating_top_k(torch.randn(2, 4), 1)
    assert scores.isnan().all()


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ({"k": 0}, r"k 0 is not in \[1"),
        ({"k": 5, "k_group": 1, "group_count": 3}, r"k 5 is not in \[1"),
        ({"group_count": 5}, "group_count must divide"),
        ({"group_count": 6}, "more than 2 experts"),
        ({"group_count": 4, "k_group": 5}, "k_group 5 is not in"),
        ({"renorm": 1}, "renorm must be 0"),
        ({"norm_type": 2}, "norm_type must be 0 or 1"),
        ({"group_select_mode": 2}, "group_select_mode must be"),
        ({"bias": torch.ones(12).half()}, "bias must have the dtype"),
        ({"bias": torch.ones(3)}, "one value per expert"),
        ({"x": torch.randn(12)}, "x must be 2-D"),
        ({"x": torch.randn(2, 12).double()}, "x must be float16"),
        ({"x": torch.randn(2, 2049)}, "at most 2048 experts"),
    ],
)
def test_top_k_names_a_broken_rule(arguments: dict[str, object], rule: str) -> None:
    call: dict[str, object] = {"x": torch.randn(2, 12), "k": 2}
    with pytest.raises(RuntimeError, match=rule):
        gating.gating_top_k(**(call | arguments))  # type: ignore[arg-type]


def test_top_k_refuses_the_hash_mode() -> None:
    ids, table = torch.zeros(2).int(), torch.zeros(9, 2).int()
    with pytest.raises(NotImplementedError, match="hash mode"):
        gating.gating_top_k(torch.randn(2, 12), 2, input_ids=ids, tid2eid=table)


def test_the_gradient_exists_for_sigmoid_only() -> None:
    with pytest.raises(RuntimeError, match="norm_type must be 1"):
        gating.gating_top_k_backward(torch.rand(2, 4), torch.rand(2, 1), torch.zeros(2, 1).int())


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ({"k": 6}, "k 6 is not in"),
        ({"x": torch.randn(5)}, "x must be 2-D or 3-D"),
        ({"finished": torch.zeros(3, dtype=torch.bool)}, r"shape x\[:-1\]"),
        ({"finished": torch.zeros(2)}, "finished must be bool"),
    ],
)
def test_softmax_names_a_broken_rule(arguments: dict[str, object], rule: str) -> None:
    call: dict[str, object] = {"x": torch.randn(2, 5), "k": 2}
    with pytest.raises(RuntimeError, match=rule):
        gating.gating_top_k_softmax(**(call | arguments))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match=rule):
        gating.gating_top_k_softmax_v2(**(call | arguments))  # type: ignore[arg-type]
