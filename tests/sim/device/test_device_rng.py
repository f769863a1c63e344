"""Random numbers come from the device's generators: seeded, restorable, apart from the CPU's."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_npu
from torch.nn import functional as F

from ascend_sim import rng

npu: Any = torch_npu.npu

Draw = Callable[[str], torch.Tensor]


def _attend(x: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)


DRAWS: dict[str, Draw] = {
    "randn": lambda d: torch.randn(64, device=d),
    "rand": lambda d: torch.rand(64, device=d),
    "randint": lambda d: torch.randint(1000, (64,), device=d),
    "randperm": lambda d: torch.randperm(64, device=d),
    "normal_": lambda d: torch.empty(64, device=d).normal_(1.0, 2.0),
    "normal tensors": lambda d: torch.normal(torch.zeros(64, device=d), torch.ones(64, device=d)),
    "uniform_": lambda d: torch.empty(64, device=d).uniform_(-1, 1),
    "random_": lambda d: torch.empty(64, device=d, dtype=torch.int64).random_(0, 1000),
    "exponential_": lambda d: torch.empty(64, device=d).exponential_(),
    "bernoulli_": lambda d: torch.empty(64, device=d).bernoulli_(0.5),
    "bernoulli": lambda d: torch.bernoulli(torch.full((64,), 0.5, device=d)),
    "multinomial": lambda d: torch.multinomial(torch.ones(64, device=d), 32),
    "dropout": lambda d: F.dropout(torch.ones(64, device=d), 0.5),
    "dropout_": lambda d: F.dropout(torch.ones(64, device=d), 0.5, inplace=True),
    "feature dropout": lambda d: F.dropout1d(torch.ones(1, 64, 2, device=d), 0.5),
    "rand_like": lambda d: torch.rand_like(torch.ones(64, device=d)),
    "trunc_normal_": lambda d: torch.nn.init.trunc_normal_(torch.empty(64, device=d)),
    "xavier": lambda d: torch.nn.init.xavier_uniform_(torch.empty(8, 8, device=d)),
    "rrelu": lambda d: F.rrelu(-torch.ones(64, device=d), training=True),
    "gumbel": lambda d: F.gumbel_softmax(torch.zeros(64, device=d)),
    "attention dropout": lambda d: _attend(torch.ones(1, 1, 8, 4, device=d)),
}


@pytest.mark.parametrize("name", DRAWS)
def test_draw_repeats_with_the_state_and_advances_it(name: str) -> None:
    draw = DRAWS[name]
    npu.manual_seed(7)
    first = draw("npu:0").cpu()
    state = npu.get_rng_state()
    second = draw("npu:0").cpu()
    assert not torch.equal(first, second)
    npu.set_rng_state(state)
    assert torch.equal(draw("npu:0").cpu(), second)
    npu.manual_seed(7)
    assert torch.equal(draw("npu:0").cpu(), first)


@pytest.mark.parametrize("name", DRAWS)
def test_draw_leaves_the_cpu_generator_and_other_devices_alone(name: str) -> None:
    torch.manual_seed(1)
    cpu, other = torch.get_rng_state(), npu.get_rng_state("npu:1")
    DRAWS[name]("npu:0")
    assert torch.equal(torch.get_rng_state(), cpu)
    assert torch.equal(npu.get_rng_state("npu:1"), other)


def test_cpu_draws_leave_the_device_alone() -> None:
    state = npu.get_rng_state()
    torch.randn(64)
    assert torch.equal(npu.get_rng_state(), state)


def test_each_device_has_its_own_stream_of_numbers() -> None:
    npu.manual_seed_all(3)
    one, two = torch.randn(9, device="npu:0"), torch.randn(9, device="npu:1")
    assert torch.equal(one.cpu(), two.cpu())
    torch.randn(9, device="npu:0")
    assert not torch.equal(
        torch.randn(9, device="npu:0").cpu(), torch.randn(9, device="npu:1").cpu()
    )


def test_torch_manual_seed_seeds_the_devices_too() -> None:
    torch.manual_seed(11)
    first = torch.rand(9, device="npu").cpu()
    torch.manual_seed(11)
    assert torch.equal(torch.rand(9, device="npu").cpu(), first)
    assert npu.initial_seed() == 11


def test_own_generator_is_used_and_a_cpu_generator_is_refused() -> None:
    generator = torch.Generator("npu:0")
    generator.manual_seed(5)
    default = npu.get_rng_state()
    first = torch.randn(9, device="npu:0", generator=generator).cpu()
    assert torch.equal(npu.get_rng_state(), default)
    generator.manual_seed(5)
    assert torch.equal(torch.randn(9, device="npu:0", generator=generator).cpu(), first)
    with pytest.raises(RuntimeError, match="generator"):
        torch.empty(9, device="npu").normal_(generator=torch.Generator("cpu"))


def test_generator_offset_and_graphsafe_state() -> None:
    generator = npu.default_generators[0]
    generator.manual_seed(9)
    torch.rand(5, device="npu:0")
    assert generator.get_offset() > 0
    kept = generator.graphsafe_get_state()
    copy = generator.clone_state()
    first = torch.rand(5, device="npu:0").cpu()
    generator.graphsafe_set_state(copy)
    assert torch.equal(torch.rand(5, device="npu:0").cpu(), first)
    generator.graphsafe_set_state(kept)


def test_fork_rng_restores_the_device() -> None:
    npu.manual_seed(2)
    with torch.random.fork_rng(devices=[0], device_type="npu"):
        inside = torch.rand(5, device="npu").cpu()
    assert torch.equal(torch.rand(5, device="npu").cpu(), inside)


def test_dropout_scales_and_its_gradient_uses_the_same_mask() -> None:
    npu.manual_seed(4)
    x = torch.ones(4096, device="npu", requires_grad=True)
    y = F.dropout(x, 0.25)
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad.cpu(), y.detach().cpu())
    kept = (y > 0).float().mean().item()
    assert 0.70 < kept < 0.80
    torch.testing.assert_close(y.max().item(), 1 / 0.75)


def test_keep_mask_follows_seed_and_offset() -> None:
    seed, offset = rng.draw(0)
    assert rng.draw(0) == (seed, offset + 4)
    mask = rng.keep_mask((50, 40), 0.9, seed, offset)
    assert mask.dtype == torch.bool
    assert torch.equal(mask, rng.keep_mask((50, 40), 0.9, seed, offset))
    assert not torch.equal(mask, rng.keep_mask((50, 40), 0.9, seed, offset + 4))
    assert 0.87 < mask.float().mean().item() < 0.93
    assert rng.keep_mask((9,), 1.0, seed, offset).all()


def test_draw_can_advance_further() -> None:
    seed, offset = rng.draw(2, count=9)
    assert rng.draw(2) == (seed, offset + 12)
