"""aten operators on the device give what the CPU gives, with gradients."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from sim.device.operator_cases import DIFFERENTIABLE, PLAIN, Case


class Maker:
    """Gives the same seeded tensors on any device, and keeps them to read their gradients."""

    def __init__(self, device: str, *, requires_grad: bool) -> None:
        self.device, self.requires_grad = device, requires_grad
        self.generator = torch.Generator("cpu").manual_seed(3)
        self.made: list[Tensor] = []

    def __call__(self, *shape: int) -> Tensor:
        values = torch.randn(shape, generator=self.generator).to(self.device)
        self.made.append(values.requires_grad_(self.requires_grad))
        return self.made[-1]


def run_case(case: Case, device: str, *, gradients: bool) -> list[Tensor]:
    make = Maker(device, requires_grad=gradients)
    result: Any = case(make)
    outputs: list[Tensor] = list(result) if isinstance(result, Sequence) else [result]
    if gradients:
        weights = torch.Generator("cpu").manual_seed(4)
        total = sum(
            (o.double() * torch.randn(o.shape, generator=weights).to(device)).sum() for o in outputs
        )
        assert isinstance(total, Tensor)
        total.backward()
        outputs += [made.grad for made in make.made if made.grad is not None]
    if device != "cpu":
        assert all(o.device.type == "npu" for o in outputs if o.dim() or gradients)
    return [o.detach().cpu() for o in outputs]


def check_equal(case: Case, *, gradients: bool) -> None:
    expected = run_case(case, "cpu", gradients=gradients)
    found = run_case(case, "npu", gradients=gradients)
    assert [(f.shape, f.dtype) for f in found] == [(e.shape, e.dtype) for e in expected]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_operator_and_its_gradient_equal_the_cpu(name: str) -> None:
    check_equal(DIFFERENTIABLE[name], gradients=True)


@pytest.mark.parametrize("name", PLAIN)
def test_operator_equals_the_cpu(name: str) -> None:
    check_equal(PLAIN[name], gradients=False)
