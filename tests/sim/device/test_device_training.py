"""Training on the device: modules, optimizers, autocast, recomputation, hooks."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_npu
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

npu: Any = torch_npu.npu

MakeOptimizer = Callable[[Any], torch.optim.Optimizer]

OPTIMIZERS: dict[str, MakeOptimizer] = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, eps=1e-4),
    "AdamW single": lambda p: torch.optim.AdamW(p, lr=0.01, eps=1e-4, foreach=False),
    "AdamW foreach": lambda p: torch.optim.AdamW(p, lr=0.01, eps=1e-4, foreach=True),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=0.01, eps=1e-4, fused=True),
    "Adam amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, eps=1e-4, amsgrad=True),
    "Adam fused": lambda p: torch.optim.Adam(p, lr=0.01, eps=1e-4, fused=True),
    "Adam tensor lr": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01), eps=1e-4),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "SGD fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, eps=1e-4),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01, eps=1e-4),
}


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Embedding(16, 8), nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 16)
    )


def train(device: str, make_optimizer: MakeOptimizer, *, clip: bool = False) -> list[float]:
    model = make_model().to(device)
    optimizer = make_optimizer(model.parameters())
    tokens = torch.arange(12).reshape(3, 4).to(device)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        logits = model(tokens)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), (tokens.flatten() + 1) % 16)
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_steps_equal_the_cpu(name: str) -> None:
    expected = train("cpu", OPTIMIZERS[name])
    assert train("npu", OPTIMIZERS[name]) == pytest.approx(expected, rel=1e-5)
    assert expected[-1] < expected[0]


def test_clipped_gradients_equal_the_cpu() -> None:
    make = OPTIMIZERS["SGD"]
    assert train("npu", make, clip=True) == pytest.approx(train("cpu", make, clip=True), rel=1e-5)


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")  # torch_npu's own deepcopy
def test_optimizer_state_lives_on_the_device_and_reloads() -> None:
    model = make_model().to("npu:1")
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.arange(4, device="npu:1")).sum().backward()
    optimizer.step()
    states = [s for state in optimizer.state.values() for s in state.values() if s.dim()]
    assert {s.device for s in states} == {torch.device("npu", 1)}
    other = torch.optim.AdamW(model.parameters())
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    loaded = [s for state in other.state.values() for s in state.values() if s.dim()]
    assert all(torch.equal(a, b) for a, b in zip(states, loaded, strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_lowers_products_and_keeps_norms(dtype: torch.dtype) -> None:
    model = make_model().to("npu")
    with torch.autocast("npu", dtype=dtype):
        hidden = model[1](model[0](torch.arange(4, device="npu")))
        assert hidden.dtype == dtype
        assert (hidden @ hidden.t()).dtype == dtype
        assert torch.nn.functional.softmax(hidden, -1).dtype == torch.float32
        loss = model(torch.arange(4, device="npu")).float().sum()
    loss.backward()
    assert model[1].weight.grad is not None
    assert model[1].weight.grad.dtype == torch.float32


def test_grad_scaler_skips_a_step_with_infinite_gradients() -> None:
    weight = nn.Parameter(torch.ones(3, device="npu"))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scaler = torch.amp.GradScaler("npu", init_scale=4.0)
    for factor in (float("inf"), 1.0):
        optimizer.zero_grad()
        scaler.scale((weight * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert weight.tolist() == pytest.approx([0.9] * 3)
    assert scaler.get_scale() == 2.0


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_recomputation_repeats_dropout(use_reentrant: bool) -> None:
    npu.manual_seed(3)
    x = torch.randn(64, device="npu", requires_grad=True)
    masks: list[Tensor] = []

    def forward(t: Tensor) -> Tensor:
        kept = nn.functional.dropout(t, 0.5)
        masks.append((kept != 0).detach().cpu())
        return kept * t

    checkpoint(forward, x, use_reentrant=use_reentrant).sum().backward()
    assert len(masks) == 2
    assert torch.equal(masks[0], masks[1])
    assert x.grad is not None
    torch.testing.assert_close(x.grad.cpu(), (4 * x.detach().cpu()) * masks[0])


def test_custom_function_and_hooks_see_device_tensors() -> None:
    seen: list[str] = []

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            seen.append(str(x.device))
            return grads[0] * 2

    x = torch.ones(3, device="npu:2", requires_grad=True)
    apply: Any = Double.apply
    expanded: Any = x.expand_as(x)
    accumulate = expanded.grad_fn.next_functions[0][0]
    handle = accumulate.register_hook(lambda *_: seen.append("accumulated"))
    apply(x).sum().backward()
    handle.remove()
    assert seen == ["npu:2", "accumulated"]
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 2.0, 2.0]


def test_parameters_may_view_one_buffer() -> None:
    model = make_model().to("npu")
    parameters = list(model.parameters())
    expected = [p.detach().cpu().clone() for p in parameters]
    buffer = torch.zeros(sum(p.numel() for p in parameters), device="npu")
    offset = 0
    for parameter in parameters:
        view = buffer[offset : offset + parameter.numel()].view(parameter.shape)
        view.copy_(parameter.detach())
        parameter.data = view
        offset += parameter.numel()
    buffer.mul_(2)
    for parameter, old in zip(parameters, expected, strict=True):
        assert torch.equal(parameter.detach().cpu(), old * 2)


def test_data_may_move_between_host_and_device() -> None:
    weight = nn.Parameter(torch.ones(3))
    weight.data = weight.data.to("npu")
    assert weight.device.type == "npu"
    (weight * 2).sum().backward()
    assert weight.grad is not None
    assert weight.grad.device.type == "npu"
    weight.data = weight.data.cpu()
    assert weight.device.type == "cpu"


def test_in_place_change_of_a_saved_tensor_is_caught() -> None:
    x = torch.ones(3, device="npu", requires_grad=True)
    y = x.exp()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_double_backward_equals_the_cpu() -> None:
    def second_gradient(device: str) -> Tensor:
        x = torch.arange(6.0).reshape(2, 3).div(5).to(device).requires_grad_()
        w = torch.arange(12.0).reshape(3, 4).div(7).to(device).requires_grad_()
        (grad,) = torch.autograd.grad((x @ w).tanh().sum(), x, create_graph=True)
        grad.square().sum().backward()
        assert w.grad is not None
        return w.grad.cpu()

    torch.testing.assert_close(second_gradient("npu"), second_gradient("cpu"))
