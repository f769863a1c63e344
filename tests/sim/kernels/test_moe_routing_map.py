"""Routing-map permutation against loops over experts in float64, gradients against autograd."""

import pytest
import torch
from torch import Tensor

from ascend_sim.kernels import moe_routing_map as routing

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
TOLERANCE = {torch.float32: 1e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}
MODES = [(False, torch.bool), (False, torch.int8), (True, torch.bool), (True, torch.int8)]


def random_map(num_tokens: int, experts: int, topk: int, seed: int = 0) -> Tensor:
    """Bool [n, e] with `topk` ones a row; the last expert gets no token."""
    generator = torch.Generator().manual_seed(seed)
    routing_map = torch.zeros(num_tokens, experts, dtype=torch.bool)
    for token in range(num_tokens):
        routing_map[token, torch.randperm(experts - 1, generator=generator)[:topk]] = True
    return routing_map


def rows_by_loop(routing_map: Tensor, capacity: int | None) -> list[tuple[int, int]]:
    """The (token, expert) of every permuted row."""
    num_tokens, experts = routing_map.shape
    rows = []
    for expert in range(experts):
        mine = [t for t in range(num_tokens) if routing_map[t, expert]]
        if capacity is not None:
            others = [t for t in range(num_tokens) if not routing_map[t, expert]]
            mine = (mine + others)[:capacity]
        rows += [(token, expert) for token in mine]
    return rows


def close(actual: Tensor, expected: Tensor) -> None:
    bound = TOLERANCE[actual.dtype]
    torch.testing.assert_close(actual.double(), expected.double(), rtol=bound, atol=bound)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("pad", "map_dtype"), MODES)
@pytest.mark.parametrize("topk", [1, 3])
def test_permute_and_its_gradients_match_a_loop(
    dtype: torch.dtype, pad: bool, map_dtype: torch.dtype, topk: int
) -> None:
    torch.manual_seed(0)
    num_tokens, experts = 7, 5
    capacity = 3 if pad else None
    routing_map = random_map(num_tokens, experts, topk)
    tokens, probs = torch.randn(num_tokens, 4).to(dtype), torch.rand(num_tokens, experts).to(dtype)
    num_out = experts * 3 if pad else num_tokens * topk
    rows = rows_by_loop(routing_map, capacity)
    leaf_tokens, leaf_probs = tokens.double().requires_grad_(), probs.double().requires_grad_()
    expected = torch.stack([leaf_tokens[token] for token, _ in rows])
    expected_probs = torch.stack([leaf_probs[pair] for pair in rows])
    grad, grad_p = torch.randn(num_out, 4).to(dtype), torch.randn(num_out).to(dtype)
    torch.autograd.backward([expected, expected_probs], [grad.double(), grad_p.double()])

    kernel_map = routing_map.to(map_dtype)
    permuted, picked, order = routing.permute_with_routing_map(
        tokens, kernel_map, probs=probs, num_out_tokens=num_out, drop_and_pad=pad
    )
    assert torch.equal(permuted.double(), expected.detach())
    assert picked is not None
    assert torch.equal(picked.double(), expected_probs.detach())
    assert order.dtype == torch.int32
    if pad:
        assert order.tolist() == [token for token, _ in rows]
    else:
        for position, row in enumerate(order.tolist()):
            assert rows[row][0] == position // topk

    grad_tokens, grad_probs = routing.permute_with_routing_map_grad(
        grad, grad_p, order, kernel_map, experts, num_tokens, pad
    )
    assert leaf_tokens.grad is not None
    assert leaf_probs.grad is not None
    assert grad_probs is not None
    close(grad_tokens, leaf_tokens.grad)
    close(grad_probs, leaf_probs.grad)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize(("pad", "map_dtype"), MODES)
@pytest.mark.parametrize("topk", [1, 3])
def test_unpermute_and_its_gradients_match_a_loop(
    dtype: torch.dtype, mixed: bool, pad: bool, map_dtype: torch.dtype, topk: int
) -> None:
    if mixed and dtype != torch.bfloat16:
        mixed = False
    torch.manual_seed(1)
    num_tokens, experts = 6, 5
    routing_map = random_map(num_tokens, experts, topk, seed=4)
    num_out = experts * 2 if pad else num_tokens * topk
    rows = rows_by_loop(routing_map, 2 if pad else None)
    _, _, order = routing.permute_with_routing_map(
        torch.zeros(num_tokens, 4), routing_map, num_out_tokens=num_out, drop_and_pad=pad
    )
    permuted = torch.randn(num_out, 4).to(dtype)
    probs = torch.rand(num_tokens, experts).to(torch.float32 if mixed else dtype)
    leaf_rows, leaf_probs = permuted.double().requires_grad_(), probs.double().requires_grad_()
    expected = torch.zeros(num_tokens, 4, dtype=torch.float64)
    for row, (token, expert) in enumerate(rows):
        part = torch.zeros_like(expected)
        part[token] = 1.0
        expected = expected + part * leaf_rows[row] * leaf_probs[token, expert]
    grad = torch.randn(num_tokens, 4).to(dtype)
    torch.autograd.backward(expected, grad.double())

    kernel_map = routing_map.to(map_dtype)
    out, out_index, token_id, permute_probs = routing.unpermute_with_routing_map_and_save(
        permuted, order, [num_tokens, 4], probs=probs, routing_map=kernel_map, drop_and_pad=pad
    )
    close(out, expected.detach())
    public = routing.unpermute_with_routing_map(
        permuted, order, [num_tokens, 4], probs=probs, routing_map=kernel_map, drop_and_pad=pad
    )
    assert torch.equal(public, out)
    assert [rows[row][0] for row in out_index.tolist()] == token_id.tolist()
    assert permute_probs is not None
    assert torch.equal(permute_probs, torch.stack([probs[pair] for pair in rows]))

    # By hand with the saved indices, and as torch_npu's autograd formula calls it.
    saved = [(out_index, token_id)] if pad else [(out_index, token_id), (order, order)]
    for first, second in saved:
        grad_rows, grad_probs = routing.unpermute_with_routing_map_grad(
            grad, first, second, kernel_map, permuted, probs, pad, [num_tokens, 4]
        )
        assert leaf_rows.grad is not None
        assert leaf_probs.grad is not None
        assert grad_probs is not None
        close(grad_rows, leaf_rows.grad)
        close(grad_probs, leaf_probs.grad)


@pytest.mark.parametrize("pad", [False, True])
def test_unpermute_without_probs_adds_rows_unweighted(pad: bool) -> None:
    routing_map = random_map(5, 4, 2)
    num_out = 8 if pad else 10
    tokens = torch.randn(5, 3)
    permuted, picked, order = routing.permute_with_routing_map(
        tokens, routing_map, num_out_tokens=num_out, drop_and_pad=pad
    )
    assert picked is None
    out = routing.unpermute_with_routing_map(permuted, order, [5, 3], drop_and_pad=pad)
    copies = torch.zeros(5, 1)
    for token, _ in rows_by_loop(routing_map, 2 if pad else None):
        copies[token] += 1
    torch.testing.assert_close(out, copies * tokens)
    _, first, second, _ = routing.unpermute_with_routing_map_and_save(
        permuted, order, [5, 3], drop_and_pad=pad
    )
    grad_rows, grad_probs = routing.unpermute_with_routing_map_grad(
        tokens, first, second, None, None, None, pad, [5, 3]
    )
    assert grad_probs is None
    expected = torch.stack([tokens[t] for t, _ in rows_by_loop(routing_map, 2 if pad else None)])
    assert torch.equal(grad_rows, expected)


def test_num_out_tokens_defaults_to_one_expert_a_token() -> None:
    routing_map = random_map(4, 3, 1)
    permuted, _, _ = routing.permute_with_routing_map(torch.randn(4, 2), routing_map)
    assert permuted.shape == (4, 2)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"num_out_tokens": 4}, "ones"),
        ({"num_out_tokens": 99}, "outside"),
        ({"routing_map": torch.full((4, 3), 2, dtype=torch.int8)}, "only 0 and 1"),
        ({"routing_map": torch.ones(4, 3)}, "routing_map must be int8, bool"),
        ({"routing_map": torch.ones(5, 3, dtype=torch.bool)}, "same rows"),
        ({"probs": torch.rand(4, 3, dtype=torch.float16)}, "probs must have the dtype"),
        ({"probs": torch.rand(4, 2)}, "shape of routing_map"),
        ({"tokens": torch.randn(4)}, "tokens must be 2-D"),
    ],
)
def test_a_broken_rule_is_named(changes: dict[str, object], rule: str) -> None:
    arguments: dict[str, object] = {
        "tokens": torch.randn(4, 2),
        "routing_map": random_map(4, 3, 2),
        "num_out_tokens": 8,
    }
    with pytest.raises(RuntimeError, match=rule):
        routing.permute_with_routing_map(**(arguments | changes))  # type: ignore[arg-type]


def test_unpermute_refuses_what_it_does_not_compute() -> None:
    order = torch.tensor([0, -1], dtype=torch.int32)
    with pytest.raises(NotImplementedError, match="-1 in sorted_indices"):
        routing.unpermute_with_routing_map(torch.randn(2, 3), order, [2, 3])
    with pytest.raises(RuntimeError, match="probs needs routing_map"):
        routing.unpermute_with_routing_map(
            torch.randn(2, 3), order.abs(), [2, 3], probs=torch.rand(2, 1)
        )


def test_permute_grad_needs_the_gradient_of_the_tokens() -> None:
    with pytest.raises(RuntimeError, match="permuted_token_out_grad must be given"):
        routing.permute_with_routing_map_grad(
            None, torch.ones(2), torch.zeros(2).int(), torch.ones(2, 1).bool(), 1, 2, False
        )
