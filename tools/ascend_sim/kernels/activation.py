"""Gated and plain activations: swiglu, geglu, gelu, fast_gelu, silu, and their gradients.

All of them compute in float32 and round once, to the dtype of the input. The gate conventions
differ and are easy to mix up: swiglu activates the first half, geglu the second unless
`activate_left`.
"""

import math

import torch
from torch import Tensor

from ascend_sim.kernels.checks import (
    refuse,
    require_float,
    require_same_dtype,
    require_same_shape,
    resolve_dim,
)
from ascend_sim.kernels.rules import require
from ascend_sim.registry import kernel

_SQRT_HALF = math.sqrt(0.5)
_SQRT_2_OVER_PI = math.sqrt(2.0 / math.pi)
_CUBIC = 0.044715
_FAST_GELU_SLOPE = 1.702


def _halves(operator: str, input: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Split `input` in two along `dim`, in float32; checks the limits of gated operators."""
    require_float(operator, input=input)
    require(operator, 1 <= input.dim() <= 8, f"input must have 1 to 8 dims, not {input.dim()}")
    axis = resolve_dim(operator, dim, input.dim())
    size = input.shape[axis]
    require(operator, size % 2 == 0, f"size {size} of dim {dim} must be even")
    x = input.float()
    return x.narrow(axis, 0, size // 2), x.narrow(axis, size // 2, size // 2)


def _silu_slope(x: Tensor) -> Tensor:
    """d silu(x)/dx = s + x s (1 - s) with s = sigmoid(x)."""
    s = torch.sigmoid(x)
    return s + x * s * (1.0 - s)


def _gelu(operator: str, x: Tensor, approximate: str) -> Tensor:
    """gelu of float32 `x`: x Phi(x), or its tanh approximation."""
    if approximate == "none":
        return 0.5 * x * (1.0 + torch.erf(x * _SQRT_HALF))
    if approximate == "tanh":
        return 0.5 * x * (1.0 + torch.tanh(_SQRT_2_OVER_PI * (x + _CUBIC * x**3)))
    refuse(operator, f"approximate must be 'none' or 'tanh', not {approximate!r}")


def _gelu_slope(operator: str, x: Tensor, approximate: str) -> Tensor:
    """d gelu(x)/dx of float32 `x`."""
    if approximate == "none":
        density = torch.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)
        return 0.5 * (1.0 + torch.erf(x * _SQRT_HALF)) + x * density
    if approximate == "tanh":
        t = torch.tanh(_SQRT_2_OVER_PI * (x + _CUBIC * x**3))
        inner = _SQRT_2_OVER_PI * (1.0 + 3.0 * _CUBIC * x * x)
        return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * inner
    refuse(operator, f"approximate must be 'none' or 'tanh', not {approximate!r}")


@kernel("npu_swiglu", document="torch_npu-npu_swiglu.md")
def npu_swiglu(input: Tensor, dim: int = -1) -> Tensor:
    """silu(A) * B, with A the first and B the second half of `input` along `dim`.

    Args:
        input: 1 to 8 dims, float16, bfloat16 or float32, even size along `dim`.
        dim: the halved dimension.

    Returns:
        `input` with half the size along `dim`, same dtype.
    """
    gate, up = _halves("npu_swiglu", input, dim)
    return (gate * torch.sigmoid(gate) * up).to(input.dtype)


@kernel("npu_swiglu_backward", document="torch_npu-npu_swiglu.md")
def npu_swiglu_backward(grad_output: Tensor, input: Tensor, dim: int = -1) -> Tensor:
    """dA = g B silu'(A), dB = g silu(A), laid out like `input`."""
    operator = "npu_swiglu_backward"
    gate, up = _halves(operator, input, dim)
    require_same_dtype(operator, grad_output=grad_output, input=input)
    require_same_shape(operator, grad_output=grad_output, half_of_input=gate)
    grad = grad_output.float()
    d_gate = grad * up * _silu_slope(gate)
    d_up = grad * gate * torch.sigmoid(gate)
    return torch.cat([d_gate, d_up], dim).to(input.dtype)


def _geglu_mode(operator: str, approximate: int) -> str:
    require(operator, approximate in (0, 1), f"approximate must be 0 or 1, not {approximate}")
    return "tanh" if approximate else "none"


@kernel("npu_geglu", document="torch_npu-npu_geglu.md")
def npu_geglu(
    input: Tensor, dim: int = -1, approximate: int = 1, activate_left: bool = False
) -> tuple[Tensor, Tensor]:
    """(other * gelu(activated), gelu(activated)); the activated half is the second by default."""
    operator = "npu_geglu"
    left, right = _halves(operator, input, dim)
    activated, other = (left, right) if activate_left else (right, left)
    gelu = _gelu(operator, activated, _geglu_mode(operator, approximate))
    return (other * gelu).to(input.dtype), gelu.to(input.dtype)


@kernel("npu_geglu_grad", document="torch_npu-npu_geglu.md")
def npu_geglu_grad(
    grad_output: Tensor,
    input: Tensor,
    gelu: Tensor,
    dim: int = -1,
    approximate: int = 1,
    activate_left: bool = False,
) -> Tensor:
    """Gradient of the first output of `npu_geglu`, from the saved gelu (its second output)."""
    operator = "npu_geglu_grad"
    left, right = _halves(operator, input, dim)
    require_same_dtype(operator, grad_output=grad_output, input=input, gelu=gelu)
    require_same_shape(operator, grad_output=grad_output, gelu=gelu, half_of_input=left)
    activated, other = (left, right) if activate_left else (right, left)
    grad = grad_output.float()
    slope = _gelu_slope(operator, activated, _geglu_mode(operator, approximate))
    d_activated, d_other = grad * other * slope, grad * gelu.float()
    pair = [d_activated, d_other] if activate_left else [d_other, d_activated]
    return torch.cat(pair, dim).to(input.dtype)


@kernel("npu_gelu", document="torch_npu-npu_gelu.md")
def npu_gelu(input: Tensor, *, approximate: str = "none") -> Tensor:
    """gelu with the error function, or its tanh approximation."""
    require_float("npu_gelu", input=input)
    return _gelu("npu_gelu", input.float(), approximate).to(input.dtype)


@kernel("npu_gelu_backward", document="torch_npu-npu_gelu.md")
def npu_gelu_backward(grad_output: Tensor, input: Tensor, *, approximate: str = "none") -> Tensor:
    """grad * gelu'(input), in the dtype both promote to."""
    operator = "npu_gelu_backward"
    require_float(operator, grad_output=grad_output, input=input)
    slope = _gelu_slope(operator, input.float(), approximate)
    return (grad_output.float() * slope).to(torch.promote_types(grad_output.dtype, input.dtype))


@kernel("npu_gelu_mul", document="torch_npu-npu_gelu_mul.md")
def npu_gelu_mul(input: Tensor, *, approximate: str = "none") -> Tensor:
    """gelu(first half of the last dim) * second half; no gradient is defined."""
    operator = "npu_gelu_mul"
    left, right = _halves(operator, input, -1)
    require(operator, 2 <= input.dim() <= 8, f"input must have 2 to 8 dims, not {input.dim()}")
    require(operator, input.shape[-1] <= 1024, f"last dim {input.shape[-1]} must be at most 1024")
    return (_gelu(operator, left, approximate) * right).to(input.dtype)


def _fast_gelu(operator: str, input: Tensor) -> Tensor:
    require_float(operator, input=input)
    x = input.float()
    return (x * torch.sigmoid(_FAST_GELU_SLOPE * x)).to(input.dtype)


@kernel("npu_fast_gelu", document="torch_npu-npu_fast_gelu.md")
def npu_fast_gelu(input: Tensor) -> Tensor:
    """x sigmoid(1.702 x)."""
    return _fast_gelu("npu_fast_gelu", input)


@kernel("fast_gelu", document="torch_npu-fast_gelu.md")
def fast_gelu(input: Tensor) -> Tensor:
    """The older name of `npu_fast_gelu`."""
    return _fast_gelu("fast_gelu", input)


@kernel("npu_fast_gelu_backward", document="torch_npu-npu_fast_gelu.md")
def npu_fast_gelu_backward(grad: Tensor, input: Tensor) -> Tensor:
    """grad * (s + a x s (1 - s)) with a = 1.702, s = sigmoid(a x)."""
    operator = "npu_fast_gelu_backward"
    require_float(operator, grad=grad, input=input)
    require_same_shape(operator, grad=grad, input=input)
    slope = _silu_slope(_FAST_GELU_SLOPE * input.float())
    return (grad.float() * slope).to(input.dtype)


@kernel("npu_silu", document="torch_npu-npu_silu.md")
def npu_silu(input: Tensor) -> Tensor:
    """x sigmoid(x)."""
    require_float("npu_silu", input=input)
    x = input.float()
    return (x * torch.sigmoid(x)).to(input.dtype)


@kernel("npu_silu_", document="torch_npu-npu_silu.md")
def npu_silu_(input: Tensor) -> Tensor:
    """`npu_silu` in place."""
    return input.copy_(npu_silu(input))


@kernel("npu_silu_backward", document="torch_npu-npu_silu.md")
def npu_silu_backward(grad_output: Tensor, x0: Tensor, x1: Tensor) -> Tensor:
    """grad * silu'(x0); `x1` is the saved output, which the formula does not need."""
    operator = "npu_silu_backward"
    require_float(operator, grad_output=grad_output, x0=x0)
    require_same_shape(operator, grad_output=grad_output, x0=x0, x1=x1)
    return (grad_output.float() * _silu_slope(x0.float())).to(grad_output.dtype)


@kernel("npu_clipped_swiglu", document="torch_npu-npu_clipped_swiglu.md")
def npu_clipped_swiglu(
    x: Tensor,
    *,
    group_index: Tensor | None = None,
    dim: int = -1,
    alpha: float = 1.702,
    limit: float = 7.0,
    bias: float = 1.0,
    interleaved: bool = True,
) -> Tensor:
    """A sigmoid(alpha A) (B + bias) with A cut off above, B at both sides; no gradient is defined.

    Args:
        x: at least 2 dims, contiguous, even along `dim`. The dims from `dim` on are one row.
        group_index: int64 [groups], rows of each group; rows past their sum are zero here, and
            whatever was in memory on the device.
        dim: the halved dimension.
        alpha: slope of the sigmoid.
        limit: A <= limit, -limit <= B <= limit.
        bias: added to B.
        interleaved: A and B are the even and odd elements of a row, else its two halves.

    Returns:
        `x` with half the size along `dim`, same dtype.
    """
    operator = "npu_clipped_swiglu"
    require_float(operator, x=x)
    require(
        operator, x.dim() > 1 and x.is_contiguous(), "x must be contiguous, with 2 dims or more"
    )
    axis = resolve_dim(operator, dim, x.dim())
    require(operator, x.shape[axis] % 2 == 0, f"size {x.shape[axis]} of dim {dim} must be even")
    rows = x.float().reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))
    half = rows.shape[1] // 2
    first, second = (
        (rows[:, 0::2], rows[:, 1::2]) if interleaved else (rows[:, :half], rows[:, half:])
    )
    gate, up = first.clamp(max=limit), second.clamp(-limit, limit)
    y = gate * torch.sigmoid(alpha * gate) * (up + bias)
    if group_index is not None:
        fits = group_index.dtype == torch.int64 and group_index.dim() == 1
        require(operator, fits, "group_index must be int64 with 1 dim")
        y[int(group_index.sum().item()) :] = 0
    shape = [size // 2 if d == axis else size for d, size in enumerate(x.shape)]
    return y.reshape(shape).to(x.dtype)
