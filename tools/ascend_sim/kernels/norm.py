"""Normalisations: rms_norm and its fused forms, layer norms, deep_norm, and their gradients.

`rstd` and `mean` are float32 with the shape of the input, the normalised dims kept as 1. Statistics
and products are float32, rounded once to the dtype of the input. The device returns the gradients
of gamma and beta as float32 whatever gamma's dtype (autograd casts them); so do these kernels.
"""

import torch
from torch import Tensor

from ascend_sim.kernels.checks import (
    require_float,
    require_same_dtype,
    require_same_shape,
)
from ascend_sim.kernels.rules import require
from ascend_sim.registry import kernel


def _normalised_dims(operator: str, x: Tensor, gamma: Tensor) -> list[int]:
    """The trailing dims of `x` that gamma covers."""
    require(operator, gamma.dim() >= 1, "gamma must have at least 1 dim")
    tail = tuple(x.shape[x.dim() - gamma.dim() :]) if gamma.dim() <= x.dim() else None
    require(
        operator,
        tail == tuple(gamma.shape),
        f"gamma {tuple(gamma.shape)} must equal the trailing dims of the input {tuple(x.shape)}",
    )
    return list(range(x.dim() - gamma.dim(), x.dim()))


def _check_gamma_dtype(operator: str, x: Tensor, gamma: Tensor) -> None:
    """gamma has the dtype of x, or is float32 beside a 16-bit x."""
    require_float(operator, input=x, gamma=gamma)
    require(
        operator,
        gamma.dtype in (x.dtype, torch.float32),
        f"gamma must be {x.dtype} or float32, not {gamma.dtype}",
    )


def _rms(x: Tensor, dims: list[int], epsilon: float) -> Tensor:
    return torch.rsqrt(x.square().mean(dims, keepdim=True) + epsilon)


@kernel("npu_rms_norm", document="torch_npu-npu_rms_norm.md")
def npu_rms_norm(input: Tensor, gamma: Tensor, epsilon: float = 1e-06) -> tuple[Tensor, Tensor]:
    """y = x * rstd * gamma, rstd = (mean(x^2) + epsilon)^-1/2 over the trailing dims of gamma.

    Returns:
        (y in the dtype of `input`, rstd float32 with the normalised dims as 1).
    """
    _check_gamma_dtype("npu_rms_norm", input, gamma)
    dims = _normalised_dims("npu_rms_norm", input, gamma)
    x = input.float()
    rstd = _rms(x, dims, epsilon)
    return (x * rstd * gamma.float()).to(input.dtype), rstd


@kernel("npu_rms_norm_backward", document="torch_npu-npu_rms_norm.md")
def npu_rms_norm_backward(
    dy: Tensor, input: Tensor, gamma: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor]:
    """dx = rstd * (g - xhat * mean(g * xhat)) with g = dy * gamma and xhat = x * rstd.

    dgamma = sum(dy * xhat) over the leading dims.

    Returns:
        (dx in the dtype of `input`, dgamma float32).
    """
    operator = "npu_rms_norm_backward"
    _check_gamma_dtype(operator, input, gamma)
    require_same_shape(operator, dy=dy, input=input)
    dims = _normalised_dims(operator, input, gamma)
    require(operator, rstd.dtype == torch.float32, f"rstd must be float32, not {rstd.dtype}")
    expected = [1 if d in dims else size for d, size in enumerate(input.shape)]
    require(operator, list(rstd.shape) == expected, f"rstd must have shape {expected}")
    xhat = input.float() * rstd
    grad = dy.float()
    scaled = grad * gamma.float()
    dx = rstd * (scaled - xhat * (scaled * xhat).mean(dims, keepdim=True))
    outer = list(range(dims[0]))
    dgamma = (grad * xhat).sum(outer) if outer else grad * xhat
    return dx.to(input.dtype), dgamma


@kernel("npu_gemma_rms_norm", document="torch_npu-npu_gemma_rms_norm.md")
def npu_gemma_rms_norm(
    input: Tensor, gamma: Tensor, epsilon: float = 1e-06
) -> tuple[Tensor, Tensor]:
    """rms_norm with (1 + gamma) as its weight. The document wants contiguous, non-empty tensors."""
    operator = "npu_gemma_rms_norm"
    require_float(operator, input=input)
    require_same_dtype(operator, input=input, gamma=gamma)
    dims = _normalised_dims(operator, input, gamma)
    require(operator, input.numel() > 0, "input must not be empty")
    require(operator, input.is_contiguous() and gamma.is_contiguous(), "tensors must be contiguous")
    x = input.float()
    rstd = _rms(x, dims, epsilon)
    return (x * rstd * (1.0 + gamma.float())).to(input.dtype), rstd


def _add_rms_norm(
    operator: str, x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """(float32 y, rstd, rounded x1 + x2); y norms the rounded sum, as the unfused pair does."""
    require_float(operator, x1=x1)
    require_same_dtype(operator, x1=x1, x2=x2, gamma=gamma)
    require_same_shape(operator, x1=x1, x2=x2)
    dims = _normalised_dims(operator, x1, gamma)
    x = (x1.float() + x2.float()).to(x1.dtype)
    rstd = _rms(x.float(), dims, epsilon)
    return x.float() * rstd * gamma.float(), rstd, x


@kernel("npu_add_rms_norm", document="torch_npu-npu_add_rms_norm.md")
def npu_add_rms_norm(
    x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-06
) -> tuple[Tensor, Tensor, Tensor]:
    """(y, rstd, x) with x = x1 + x2, y = rms_norm(x); torch_npu defines no gradient."""
    y, rstd, x = _add_rms_norm("npu_add_rms_norm", x1, x2, gamma, epsilon)
    return y.to(x1.dtype), rstd, x


@kernel("npu_add_rms_norm_v2", document="op_plugin_functions.yaml: npu_add_rms_norm_v2")
def npu_add_rms_norm_v2(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-06) -> Tensor:
    """In-place form: x1 becomes y, x2 becomes x1 + x2; returns rstd."""
    y, rstd, x = _add_rms_norm("npu_add_rms_norm_v2", x1, x2, gamma, epsilon)
    x1.copy_(y)
    x2.copy_(x)
    return rstd


@kernel(
    "npu_add_rms_norm_v2_functional",
    document="op_plugin_functions.yaml: npu_add_rms_norm_v2_functional",
)
def npu_add_rms_norm_v2_functional(
    x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-06
) -> tuple[Tensor, Tensor, Tensor]:
    """(rstd, y, x1 + x2): what `npu_add_rms_norm_v2` writes, in new tensors."""
    operator = "npu_add_rms_norm_v2_functional"
    y, rstd, x = _add_rms_norm(operator, x1, x2, gamma, epsilon)
    return rstd, y.to(x1.dtype), x


@kernel("npu_add_rms_norm_cast", document="op_plugin_functions.yaml: npu_add_rms_norm_cast")
def npu_add_rms_norm_cast(
    x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-06
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(y float32, y in the input dtype, rstd, x1 + x2)."""
    y, rstd, x = _add_rms_norm("npu_add_rms_norm_cast", x1, x2, gamma, epsilon)
    return y.to(x1.dtype).float(), y.to(x1.dtype), rstd, x


def _layer_stats(x: Tensor, dims: list[int], epsilon: float) -> tuple[Tensor, Tensor]:
    mean = x.mean(dims, keepdim=True)
    return mean, torch.rsqrt((x - mean).square().mean(dims, keepdim=True) + epsilon)


def _layer_norm_backward(
    grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, gamma: Tensor, dims: list[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """(dx, dgamma, dbeta) of gamma * (x - mean) * rstd + beta, all float32."""
    xhat = (x - mean) * rstd
    scaled = grad * gamma
    centred = scaled - scaled.mean(dims, keepdim=True)
    dx = rstd * (centred - xhat * (scaled * xhat).mean(dims, keepdim=True))
    outer = list(range(dims[0]))
    if not outer:
        return dx, grad * xhat, grad
    return dx, (grad * xhat).sum(outer), grad.sum(outer)


@kernel("npu_deep_norm", document="op_plugin_functions.yaml: npu_deep_norm")
def npu_deep_norm(
    x: Tensor, gx: Tensor, beta: Tensor, gamma: Tensor, alpha: float = 0.3, epsilon: float = 1e-06
) -> tuple[Tensor, Tensor, Tensor]:
    """(mean, rstd, y) with y = layer_norm(alpha * x + gx) * gamma + beta."""
    operator = "npu_deep_norm"
    require_float(operator, x=x)
    require_same_dtype(operator, x=x, gx=gx, beta=beta, gamma=gamma)
    require_same_shape(operator, x=x, gx=gx)
    require_same_shape(operator, beta=beta, gamma=gamma)
    dims = _normalised_dims(operator, x, gamma)
    summed = alpha * x.float() + gx.float()
    mean, rstd = _layer_stats(summed, dims, epsilon)
    y = (summed - mean) * rstd * gamma.float() + beta.float()
    return mean, rstd, y.to(x.dtype)


@kernel("npu_deep_norm_backward", document="op_plugin_functions.yaml: npu_deep_norm_backward")
def npu_deep_norm_backward(
    dy: Tensor,
    x: Tensor,
    gx: Tensor,
    gamma: Tensor,
    mean: Tensor,
    rstd: Tensor,
    alpha: float = 0.3,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(dx, dgx, dbeta, dgamma); the last two are float32 and in this order."""
    operator = "npu_deep_norm_backward"
    require_same_dtype(operator, dy=dy, x=x, gx=gx, gamma=gamma)
    require_same_shape(operator, dy=dy, x=x, gx=gx)
    dims = _normalised_dims(operator, x, gamma)
    summed = alpha * x.float() + gx.float()
    d_sum, dgamma, dbeta = _layer_norm_backward(dy.float(), summed, mean, rstd, gamma.float(), dims)
    return (alpha * d_sum).to(x.dtype), d_sum.to(gx.dtype), dbeta, dgamma


@kernel("npu_layer_norm_eval", document="torch_npu-npu_layer_norm_eval.md")
def npu_layer_norm_eval(
    input: Tensor,
    normalized_shape: list[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-05,
) -> Tensor:
    """Layer norm without saved statistics, for inference; no gradient is defined."""
    operator = "npu_layer_norm_eval"
    require_float(operator, input=input, weight=weight, bias=bias)
    like = input.new_empty(normalized_shape)
    dims = _normalised_dims(operator, input, like)
    x = input.float()
    mean, rstd = _layer_stats(x, dims, eps)
    y = (x - mean) * rstd
    if weight is not None:
        y = y * weight.float()
    if bias is not None:
        y = y + bias.float()
    return y.to(input.dtype)


@kernel("npu_add_layer_norm", document="op_plugin_functions.yaml: npu_add_layer_norm")
def npu_add_layer_norm(
    x1: Tensor,
    x2: Tensor,
    gamma: Tensor,
    beta: Tensor,
    epsilon: float = 1e-05,
    additional_output: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(y, mean, rstd, x) with x = x1 + x2, y = layer_norm(x).

    The device leaves x unwritten without `additional_output`; here it is zeros, so that no test
    reads the sum by luck. Mixed dtypes of x1 and x2 give float32 outputs.
    """
    operator = "npu_add_layer_norm"
    require_float(operator, x1=x1, x2=x2, gamma=gamma, beta=beta)
    require_same_shape(operator, x1=x1, x2=x2)
    dims = _normalised_dims(operator, x1, gamma)
    dtype = x1.dtype if x1.dtype == x2.dtype else torch.float32
    summed = x1.float() + x2.float()
    mean, rstd = _layer_stats(summed, dims, epsilon)
    y = (summed - mean) * rstd * gamma.float() + beta.float()
    x = summed.to(dtype) if additional_output else torch.zeros_like(summed, dtype=dtype)
    return y.to(dtype), mean, rstd, x


@kernel(
    "npu_add_layer_norm_backward",
    document="op_plugin_functions.yaml: npu_add_layer_norm_backward",
)
def npu_add_layer_norm_backward(
    dy_opt: Tensor | None,
    x1: Tensor,
    x2: Tensor,
    rstd: Tensor,
    mean: Tensor,
    gamma: Tensor,
    dsum_opt: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(dx, dx, dgamma, dbeta); a missing gradient counts as zero, dgamma and dbeta are float32."""
    dims = _normalised_dims("npu_add_layer_norm_backward", x1, gamma)
    summed = x1.float() + x2.float()
    grad = torch.zeros_like(summed) if dy_opt is None else dy_opt.float()
    dx, dgamma, dbeta = _layer_norm_backward(grad, summed, mean, rstd, gamma.float(), dims)
    if dsum_opt is not None:
        dx = dx + dsum_opt.float()
    return dx.to(x1.dtype), dx.to(x1.dtype), dgamma, dbeta
