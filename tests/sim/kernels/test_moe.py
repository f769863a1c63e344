"""Token permutation against loops in float64, gradients against autograd of those loops."""

import pytest
import torch
from torch import Tensor

from ascend_sim.kernels import moe

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
# Sums of at most six values; one rounding to the dtype at the end.
TOLERANCE = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def permute_by_loop(tokens: Tensor, indices: Tensor) -> tuple[list[Tensor], list[int]]:
    """Rows and, for each (token, choice) pair, its row: experts in order, pairs in order."""
    topk = 1 if indices.dim() == 1 else indices.size(1)
    pairs = indices.reshape(-1).tolist()
    rows: list[Tensor] = []
    where = [0] * len(pairs)
    for expert in range(max(pairs, default=0) + 1):
        for pair, chosen in enumerate(pairs):
            if chosen == expert:
                where[pair] = len(rows)
                rows.append(tokens[pair // topk])
    return rows, where


def unpermute_by_loop(rows: Tensor, where: list[int], probs: Tensor | None) -> Tensor:
    """Weighted sum of the rows of each token; rows that were cut off count as zero."""
    topk = 1 if probs is None else probs.size(1)
    out = []
    for token in range(len(where) // topk):
        total = rows.new_zeros(rows.size(1))
        for choice in range(topk):
            row = where[token * topk + choice]
            if row < rows.size(0):
                weight = 1.0 if probs is None else probs[token, choice]
                total = total + weight * rows[row]
        out.append(total)
    return torch.stack(out)


def close(actual: Tensor, expected: Tensor) -> None:
    bound = TOLERANCE[actual.dtype]
    torch.testing.assert_close(actual.double(), expected.double(), rtol=bound, atol=bound)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(("num_tokens", "topk", "experts"), [(7, 3, 5), (5, 1, 9), (1, 2, 2)])
def test_permute_sorts_copies_stably_by_expert(
    dtype: torch.dtype, index_dtype: torch.dtype, num_tokens: int, topk: int, experts: int
) -> None:
    torch.manual_seed(0)
    tokens = torch.randn(num_tokens, 6).to(dtype)
    indices = torch.stack([torch.randperm(experts)[:topk] for _ in range(num_tokens)])
    rows, where = permute_by_loop(tokens, indices)
    permuted, sorted_indices = moe.permute(tokens, indices.to(index_dtype))
    assert torch.equal(permuted, torch.stack(rows))
    assert sorted_indices.dtype == torch.int32
    assert sorted_indices.tolist() == where


def test_permute_takes_one_expert_per_token_as_a_vector() -> None:
    tokens = torch.randn(6, 3)
    indices = torch.tensor([2, 0, 2, 1, 0, 5])
    permuted, sorted_indices = moe.permute(tokens, indices)
    assert torch.equal(permuted, tokens[[1, 4, 3, 0, 2, 5]])
    assert sorted_indices.tolist() == [3, 0, 4, 2, 1, 5]


@pytest.mark.parametrize(("num_out", "rows"), [(None, 8), (0, 8), (5, 5), (100, 8), (-3, 5)])
def test_permute_cuts_tokens_but_never_the_indices(num_out: int | None, rows: int) -> None:
    tokens = torch.randn(4, 3)
    indices = torch.tensor([[0, 1], [1, 0], [0, 2], [2, 0]])
    full, order = moe.permute(tokens, indices)
    cut, cut_order = moe.permute(tokens, indices, num_out)
    assert torch.equal(cut, full[:rows])
    assert torch.equal(order, cut_order)


def test_permute_of_no_tokens_is_empty() -> None:
    permuted, order = moe.permute(torch.randn(0, 4), torch.zeros(0, 2, dtype=torch.int64))
    assert permuted.shape == (0, 4)
    assert order.numel() == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_out", [None, 9])
def test_permute_grad_sums_the_copies_of_a_token(dtype: torch.dtype, num_out: int | None) -> None:
    torch.manual_seed(1)
    tokens = torch.randn(5, 4).to(dtype)
    indices = torch.stack([torch.randperm(6)[:3] for _ in range(5)])
    leaf = tokens.double().requires_grad_()
    rows, _ = permute_by_loop(leaf, indices)
    grad = torch.randn(num_out or 15, 4).to(dtype)
    torch.autograd.backward(torch.stack(rows)[: grad.size(0)], grad.double())
    _, order = moe.permute(tokens, indices, num_out)
    assert leaf.grad is not None
    close(moe.permute_grad_v2(grad, order, 5, dtype, 3), leaf.grad)
    close(moe.permute_grad(tokens, grad, indices, order), leaf.grad)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("probs_dtype", DTYPES)
@pytest.mark.parametrize("topk", [1, 4])
@pytest.mark.parametrize("rows", [None, 6])
def test_unpermute_and_its_gradients_match_a_loop(
    dtype: torch.dtype, probs_dtype: torch.dtype, topk: int, rows: int | None
) -> None:
    torch.manual_seed(2)
    num_tokens = 9
    where = torch.randperm(num_tokens * topk)
    permuted = torch.randn(rows or num_tokens * topk, 5).to(dtype)
    probs = torch.rand(num_tokens, topk).to(probs_dtype)
    leaf_rows, leaf_probs = permuted.double().requires_grad_(), probs.double().requires_grad_()
    expected = unpermute_by_loop(leaf_rows, where.tolist(), leaf_probs)
    grad = torch.randn(num_tokens, 5).to(dtype)
    torch.autograd.backward(expected, grad.double())

    indices = where.to(torch.int32)
    out = moe.unpermute(permuted, indices, probs)
    assert out.dtype == dtype
    close(out, expected.detach())
    results = (
        moe.unpermute_grad(permuted, grad, indices, probs),
        moe.unpermute_grad_v2(
            grad, indices, permuted.size(0), dtype, probs, permuted_tokens=permuted
        ),
    )
    for grad_rows, grad_probs in results:
        assert leaf_rows.grad is not None
        assert leaf_probs.grad is not None
        assert grad_probs is not None
        assert grad_probs.dtype == probs_dtype
        close(grad_rows, leaf_rows.grad)
        torch.testing.assert_close(
            grad_probs.double(), leaf_probs.grad, rtol=2 * TOLERANCE[probs_dtype], atol=1e-2
        )


def test_unpermute_without_probs_treats_every_row_as_a_token() -> None:
    permuted = torch.randn(6, 4)
    order = torch.tensor([3, 0, 5, 1, 2, 4], dtype=torch.int32)
    assert torch.equal(moe.unpermute(permuted, order), permuted[order.long()])
    grad_rows, grad_probs = moe.unpermute_grad(permuted, permuted, order)
    assert grad_probs is None
    assert torch.equal(grad_rows[order.long()], permuted)


def test_unpermute_skips_a_nan_row_of_probability_zero() -> None:
    permuted = torch.tensor([[1.0, 2.0], [float("nan"), 0.0]])
    order = torch.tensor([0, 1], dtype=torch.int32)
    out = moe.unpermute(permuted, order, torch.tensor([[1.0, 0.0]]))
    assert out.tolist() == [[1.0, 2.0]]


def test_unpermute_undoes_permute_when_probabilities_add_up_to_one() -> None:
    torch.manual_seed(3)
    tokens = torch.randn(8, 4)
    indices = torch.stack([torch.randperm(5)[:2] for _ in range(8)])
    permuted, order = moe.permute(tokens, indices)
    close(moe.unpermute(permuted, order, torch.full((8, 2), 0.5)), tokens)


@pytest.mark.parametrize(
    ("call", "rule"),
    [
        (lambda t, i: moe.permute(t, i, padded_mode=True), "padded_mode must be False"),
        (lambda t, i: moe.permute(t[0], i), "tokens must be 2-D"),
        (lambda t, i: moe.permute(t.double(), i), "tokens must be float16"),
        (lambda t, i: moe.permute(t, i.float()), "indices must be int32"),
        (lambda t, i: moe.permute(t, i[:-1]), "same rows"),
        (lambda t, i: moe.unpermute(t, i.flatten()), "sorted_indices must be int32"),
        (lambda t, i: moe.unpermute(t, i.int()), "sorted_indices must be 1-D"),
        (
            lambda t, i: moe.unpermute(t, i[:, 0].int(), restore_shape=[1, 2]),
            "restore_shape must be None",
        ),
        (
            lambda t, i: moe.unpermute(t, i[:, 0].int(), torch.rand(4, 1, 1)),
            "probs must be 2-D",
        ),
        (
            lambda t, i: moe.permute(t, torch.zeros(4, 513, dtype=torch.int64)),
            "topK must be at most 512",
        ),
    ],
)
def test_a_broken_rule_is_named(call, rule: str) -> None:  # type: ignore[no-untyped-def]
    tokens, indices = torch.randn(4, 3), torch.zeros(4, 2, dtype=torch.int64)
    with pytest.raises(RuntimeError, match=rule):
        call(tokens, indices)
