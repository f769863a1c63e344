"""Optimiser steps in one operator: npu_apply_adam_w and npu_apply_adam, in their `out=` forms.

The forms without `out` exist in the schema only; torch_npu refuses them, and so they have no
kernel. State is updated in place; all arithmetic is float32, results are cast to the state's dtype.
Follows the torch_npu page of npu_apply_adam_w, and CANN's ApplyAdam, which is TensorFlow's.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ascend_sim.kernels.rules import FLOATS, require, require_dtype
from ascend_sim.registry import kernel

Scalar = float


class _State(NamedTuple):
    var: Tensor
    m: Tensor
    v: Tensor


def _read_state(name: str, out: list[Tensor], grad: Tensor) -> _State:
    require(name, len(out) == 3, "out must be (var, m, v)")
    for label, tensor in zip(("var", "m", "v"), out, strict=True):
        require_dtype(name, label, tensor, FLOATS)
        require(name, tensor.dtype == grad.dtype, f"{label} must have the dtype of grad")
        require(name, tensor.shape == grad.shape, f"{label} must have the shape of grad")
    return _State(*out)


def _update_moments(
    state: _State, grad: Tensor, beta1: float, beta2: float
) -> tuple[Tensor, Tensor]:
    m = beta1 * state.m.float() + (1 - beta1) * grad
    v = beta2 * state.v.float() + (1 - beta2) * grad * grad
    return m, v


@kernel("npu_apply_adam_w.out", document="torch_npu-npu_apply_adam_w")
def apply_adam_w_out(
    beta1_power: Scalar,
    beta2_power: Scalar,
    lr: Scalar,
    weight_decay: Scalar,
    beta1: Scalar,
    beta2: Scalar,
    epsilon: Scalar,
    grad: Tensor,
    max_grad_norm: Tensor | None,
    amsgrad: bool | None,
    maximize: bool | None,
    *,
    out: list[Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """One AdamW step with decoupled decay.

    m = b1·m + (1 - b1)·g, v = b2·v + (1 - b2)·g², then
    var -= lr·(m / (1 - b1^t)) / (sqrt(v' / (1 - b2^t)) + eps) + lr·decay·var, where v' is v or,
    with amsgrad, max(max_grad_norm, v), which is kept in max_grad_norm.

    Args:
        beta1_power: b1^(t-1); the operator multiplies once more. So `beta2_power`.
        grad: dtype and shape of the state, fp16, bf16 or fp32.
        max_grad_norm: needed with amsgrad, written.
        maximize: step along the gradient.
        out: var, m, v, updated in place.

    Returns:
        The tensors of `out`.

    Raises:
        RuntimeError: a documented rule is broken.
    """
    name = "npu_apply_adam_w"
    state = _read_state(name, out, grad)
    g = -grad.float() if maximize else grad.float()
    m, v = _update_moments(state, g, beta1, beta2)
    second = v
    if amsgrad:
        require(name, max_grad_norm is not None, "amsgrad needs max_grad_norm")
        assert max_grad_norm is not None
        require(name, max_grad_norm.dtype == grad.dtype, "max_grad_norm must have grad's dtype")
        require(name, max_grad_norm.shape == grad.shape, "max_grad_norm must have grad's shape")
        second = torch.maximum(max_grad_norm.float(), v)
        max_grad_norm.copy_(second)
    m_hat = m / (1 - beta1_power * beta1)
    v_hat = second / (1 - beta2_power * beta2)
    var = state.var.float()
    state.var.copy_(var - lr * m_hat / (v_hat.sqrt() + epsilon) - lr * weight_decay * var)
    state.m.copy_(m)
    state.v.copy_(v)
    return state.var, state.m, state.v


@kernel("npu_apply_adam.out", document="CANN ApplyAdam")
def apply_adam_out(
    beta1_power: Scalar,
    beta2_power: Scalar,
    lr: Scalar,
    beta1: Scalar,
    beta2: Scalar,
    epsilon: Scalar,
    grad: Tensor,
    use_locking: bool | None,
    use_nesterov: bool | None,
    *,
    out: list[Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """One Adam step as TensorFlow defines it.

    var -= lr·sqrt(1 - b2^t) / (1 - b1^t) · m / (sqrt(v) + eps); with Nesterov momentum,
    b1·m + (1 - b1)·g stands for m. Epsilon is added to the uncorrected sqrt(v).

    Args:
        beta1_power: b1^t, not advanced by the operator. So `beta2_power`.
        grad: dtype and shape of the state, fp16, bf16 or fp32.
        use_locking: has no effect on the result.
        out: var, m, v, updated in place.

    Returns:
        The tensors of `out`.

    Raises:
        RuntimeError: a documented rule is broken.
    """
    state = _read_state("npu_apply_adam", out, grad)
    g = grad.float()
    m, v = _update_moments(state, g, beta1, beta2)
    rate = lr * math.sqrt(1 - beta2_power) / (1 - beta1_power)
    direction = beta1 * m + (1 - beta1) * g if use_nesterov else m
    state.var.copy_(state.var.float() - rate * direction / (v.sqrt() + epsilon))
    state.m.copy_(m)
    state.v.copy_(v)
    return state.var, state.m, state.v
