"""Gradients on the simulated device: torch_npu's own C++ formulas calling the reference kernels.

Each operator is compared, forward and backward, with a plain torch formula in float64 on the CPU.
"""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

import ascend_sim

ascend_sim.install()

import torch_npu  # noqa: E402  (the device must be there first)

Formula = Callable[..., Tensor]
INDICES = torch.tensor([[0, 2], [1, 0], [2, 3], [3, 1], [0, 1]])
ROUTES = torch.tensor([[1, 0, 1, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 1, 0, 1], [1, 1, 0, 0]]).bool()


def compare(on_device: Formula, formula: Formula, inputs: Sequence[Tensor]) -> None:
    """Run both, backpropagate one random gradient, compare results and all gradients."""
    device = [x.to("npu").requires_grad_() for x in inputs]
    plain = [x.double().requires_grad_() for x in inputs]
    actual, expected = on_device(*device), formula(*plain)
    grad = torch.randn(expected.shape, generator=torch.Generator().manual_seed(5))
    assert actual.device.type == "npu"
    torch.autograd.backward(actual, grad.to(actual.dtype).to("npu"))
    torch.autograd.backward(expected, grad.double())
    pairs = [(actual.detach(), expected.detach())]
    pairs += [(a.grad, b.grad) for a, b in zip(device, plain, strict=True)]  # type: ignore[misc]
    for found, wanted in pairs:
        torch.testing.assert_close(found.cpu().double(), wanted, rtol=1e-5, atol=1e-5)


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def by_expert(tokens: Tensor) -> Tensor:
    order = torch.argsort(INDICES.flatten(), stable=True)
    return tokens[order // 2]


def routed(tokens: Tensor) -> list[tuple[int, int]]:
    return [(token, expert) for expert in range(4) for token in range(5) if ROUTES[token, expert]]


@pytest.mark.parametrize("rows", [None, 7])
def test_permute(rows: int | None) -> None:
    compare(
        lambda x: torch_npu.npu_moe_token_permute(x, INDICES.to("npu"), rows)[0],
        lambda x: by_expert(x)[:rows],
        [draw(5, 3)],
    )


def test_unpermute() -> None:
    places = torch.argsort(torch.argsort(INDICES.flatten(), stable=True))
    compare(
        lambda x, p: torch_npu.npu_moe_token_unpermute(x, places.int().to("npu"), p),
        lambda x, p: (x[places].reshape(5, 2, 3) * p.unsqueeze(2)).sum(1),
        [draw(10, 3), draw(5, 2)],
    )


def test_permute_with_routing_map_carries_both_gradients() -> None:
    def on_device(x: Tensor, p: Tensor) -> Tensor:
        rows, probs, _ = torch_npu.npu_moe_token_permute_with_routing_map(
            x, ROUTES.to("npu"), probs=p, num_out_tokens=10
        )
        weighted: Tensor = rows * probs.unsqueeze(1)
        return weighted

    def formula(x: Tensor, p: Tensor) -> Tensor:
        return torch.stack([x[t] * p[t, e] for t, e in routed(x)])

    compare(on_device, formula, [draw(5, 3), draw(5, 4)])


@pytest.mark.parametrize("pad", [False, True])
def test_unpermute_with_routing_map(pad: bool) -> None:
    num_rows = 8 if pad else 10
    _, _, places = torch_npu.npu_moe_token_permute_with_routing_map(
        draw(5, 3).to("npu"), ROUTES.to("npu"), num_out_tokens=num_rows, drop_and_pad=pad
    )
    pairs = routed(draw(5, 3))
    if pad:
        pairs = [(int(token), row // 2) for row, token in enumerate(places)]

    def on_device(x: Tensor, p: Tensor) -> Tensor:
        result: Tensor = torch_npu.npu_moe_token_unpermute_with_routing_map(
            x, places, [5, 3], probs=p, routing_map=ROUTES.to("npu"), drop_and_pad=pad
        )
        return result

    def formula(x: Tensor, p: Tensor) -> Tensor:
        parts = [x[row] * p[token, expert] for row, (token, expert) in enumerate(pairs)]
        tokens = torch.tensor([token for token, _ in pairs])
        return torch.zeros(5, 3, dtype=x.dtype).index_add(0, tokens, torch.stack(parts))

    compare(on_device, formula, [draw(num_rows, 3), draw(5, 4)])


def test_gating_top_k() -> None:
    def on_device(x: Tensor) -> Tensor:
        result: Tensor = torch_npu.npu_moe_gating_top_k(x, 2, norm_type=1, out_flag=True)[0]
        return result

    def formula(x: Tensor) -> Tensor:
        picked = torch.sigmoid(x).topk(2).values
        return picked / picked.sum(1, keepdim=True)

    compare(on_device, formula, [draw(4, 6)])


def test_linear() -> None:
    compare(
        torch_npu.npu_linear,
        lambda x, w, b: x @ w.T + b,
        [draw(4, 5), draw(3, 5), draw(3)],
    )


@pytest.mark.parametrize(("left", "right"), [((2, 3, 4), (2, 4, 5)), ((2, 3, 4), (4, 5))])
def test_bmm(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    compare(lambda a, b: torch_npu.npu_bmmV2(a, b, []), torch.matmul, [draw(*left), draw(*right)])


def test_dtype_cast_rounds_forward_and_returns_the_gradient_in_the_dtype_of_the_input() -> None:
    x = draw(3, 4).to("npu").requires_grad_()
    half = torch_npu.npu_dtype_cast(x, torch.float16)
    grad = draw(4, 3).t().half()
    torch.autograd.backward(half, grad.to("npu"))
    assert torch.equal(half.detach().cpu(), draw(3, 4).half())
    assert x.grad is not None
    assert torch.equal(x.grad.cpu(), grad.float())


@pytest.mark.parametrize("first", [False, True])
def test_confusion_transpose(first: bool) -> None:
    shape = (3, 8) if first else (2, 4, 3)
    compare(
        lambda x: torch_npu.npu_confusion_transpose(x, (2, 0, 1), shape, first),
        lambda x: x.permute(2, 0, 1).reshape(shape) if first else x.reshape(shape).permute(2, 0, 1),
        [draw(2, 4, 3)],
    )


@pytest.mark.parametrize("keepdim", [False, True])
def test_extremes(keepdim: bool) -> None:
    compare(
        lambda x: torch_npu.npu_max(x, 1, keepdim)[0],
        lambda x: x.max(1, keepdim).values,
        [draw(3, 4)],
    )
    compare(
        lambda x: torch_npu.npu_min(x, 0, keepdim)[0],
        lambda x: x.min(0, keepdim).values,
        [draw(3, 4)],
    )


def test_adam_w_updates_device_memory_in_place() -> None:
    var, m, v = draw(3, 4).to("npu"), torch.zeros(3, 4).to("npu"), torch.zeros(3, 4).to("npu")
    grad, before = draw(4, 3).t().contiguous(), var.cpu()
    torch_npu.npu_apply_adam_w(
        1.0, 1.0, 0.1, 0.0, 0.9, 0.99, 1e-8, grad.to("npu"), None, False, False, out=(var, m, v)
    )
    # The first Adam step moves every weight by the learning rate.
    torch.testing.assert_close(var.cpu(), before - 0.1 * grad.sign(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(m.cpu(), 0.1 * grad)


def test_grouped_matmul_and_its_accumulating_form() -> None:
    x, weight, dy = draw(6, 4), draw(2, 4, 3), draw(6, 3)
    ends = torch.tensor([2, 6])
    out = torch_npu.npu_grouped_matmul(
        [x.to("npu")], [weight.to("npu")], group_list=ends.to("npu"), split_item=3, group_type=0
    )[0]
    torch.testing.assert_close(out.cpu(), torch.cat([x[:2] @ weight[0], x[2:] @ weight[1]]))
    total = torch.ones(2, 4, 3).to("npu")
    torch_npu.npu_grouped_matmul_add_(
        total, x.half().to("npu"), dy.half().to("npu"), ends.to("npu")
    )
    halves = x.half().float(), dy.half().float()
    first = halves[0][:2].T @ halves[1][:2]
    torch.testing.assert_close(total[0].cpu(), 1 + first, rtol=1e-4, atol=1e-4)
