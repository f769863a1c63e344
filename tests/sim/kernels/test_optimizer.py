"""Optimiser steps against torch.optim in float64, over several steps."""

import pytest
import torch
from torch import Tensor

from ascend_sim.kernels import optimizer

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
TOLERANCE = {torch.float32: 1e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("shape", [(3,), (2, 4)])
def test_adam_w_follows_torch_step_by_step(
    dtype: torch.dtype, amsgrad: bool, maximize: bool, shape: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    start = torch.randn(shape).to(dtype)
    var, m, v = start.clone(), torch.zeros_like(start), torch.zeros_like(start)
    largest = torch.zeros_like(start)
    leaf = start.double().requires_grad_()
    reference = torch.optim.AdamW(
        [leaf],
        lr=0.05,
        betas=(0.9, 0.99),
        eps=1e-6,
        weight_decay=0.1,
        amsgrad=amsgrad,
        maximize=maximize,
    )
    for step in range(1, 4):
        grad = torch.randn(shape).to(dtype)
        leaf.grad = grad.double()
        reference.step()
        result = optimizer.apply_adam_w_out(
            0.9 ** (step - 1),
            0.99 ** (step - 1),
            0.05,
            0.1,
            0.9,
            0.99,
            1e-6,
            grad,
            largest if amsgrad else None,
            amsgrad,
            maximize,
            out=[var, m, v],
        )
        assert result[0] is var
        assert result[1] is m
        assert result[2] is v
        bound = TOLERANCE[dtype]
        torch.testing.assert_close(var.double(), leaf.detach(), rtol=bound, atol=bound)
        state = reference.state[leaf]
        torch.testing.assert_close(v.double(), state["exp_avg_sq"], rtol=2 * bound, atol=bound)
        if amsgrad:
            best = state["max_exp_avg_sq"]
            torch.testing.assert_close(largest.double(), best, rtol=2 * bound, atol=bound)


def adam_by_hand(
    var: float, m: float, v: float, grad: float, step: int, nesterov: bool
) -> tuple[float, float, float]:
    m, v = 0.9 * m + 0.1 * grad, 0.99 * v + 0.01 * grad**2
    rate = 0.05 * (1 - 0.99**step) ** 0.5 / (1 - 0.9**step)
    direction = 0.9 * m + 0.1 * grad if nesterov else m
    return var - rate * direction / (v**0.5 + 1e-6), m, v


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("nesterov", [False, True, None])
def test_adam_adds_epsilon_to_the_uncorrected_moment(
    dtype: torch.dtype, nesterov: bool | None
) -> None:
    var, m, v = (torch.tensor([1.0, -2.0], dtype=dtype).mul(f) for f in (1, 0, 0))
    expected = [(1.0, 0.0, 0.0), (-2.0, 0.0, 0.0)]
    for step in (1, 2):
        grad = torch.tensor([0.5, -0.25], dtype=dtype)
        optimizer.apply_adam_out(
            0.9**step, 0.99**step, 0.05, 0.9, 0.99, 1e-6, grad, None, nesterov, out=[var, m, v]
        )
        expected = [
            adam_by_hand(*old, float(g), step, bool(nesterov))
            for old, g in zip(expected, grad, strict=True)
        ]
    values: list[Tensor] = [var, m, v]
    for index, tensor in enumerate(values):
        wanted = torch.tensor([row[index] for row in expected], dtype=torch.float64)
        torch.testing.assert_close(tensor.double(), wanted, rtol=TOLERANCE[dtype], atol=1e-6)


def test_a_broken_rule_is_named() -> None:
    ones = torch.ones(2)
    with pytest.raises(RuntimeError, match="amsgrad needs max_grad_norm"):
        optimizer.apply_adam_w_out(
            1, 1, 0.1, 0, 0.9, 0.9, 1e-8, ones, None, True, False, out=[ones, ones, ones]
        )
    with pytest.raises(RuntimeError, match="m must have the dtype of grad"):
        optimizer.apply_adam_w_out(
            1, 1, 0.1, 0, 0.9, 0.9, 1e-8, ones, None, None, None, out=[ones, ones.half(), ones]
        )
    with pytest.raises(RuntimeError, match="v must have the shape of grad"):
        optimizer.apply_adam_out(
            0.9, 0.9, 0.1, 0.9, 0.9, 1e-8, ones, None, None, out=[ones, ones, torch.ones(3)]
        )
    with pytest.raises(RuntimeError, match=r"out must be \(var, m, v\)"):
        optimizer.apply_adam_out(0.9, 0.9, 0.1, 0.9, 0.9, 1e-8, ones, None, None, out=[ones])
