"""Reference kernels of backward operators that torch_npu's formulas of aten operators call.

torch_npu has formulas of its own for some aten operators (`l1_loss`, `kl_div`, `repeat_interleave`,
`fft`, ...). Their backward halves are `npu::` operators without documents; each follows the
derivative of the aten operator, which the docstring writes out.
"""

import torch
from torch import Tensor

from ascend_sim.aten_backward import matmul_backward
from ascend_sim.registry import kernel

_DOCUMENT = "derivative of the aten operator"
_MEAN = 1
"""aten's number of `reduction="mean"`; 0 is none, 2 is sum."""


def _spread(grad: Tensor, like: Tensor, reduction: int) -> Tensor:
    """Return the gradient of each element of a loss before its reduction."""
    return grad / like.numel() if reduction == _MEAN else grad


@kernel("l1_loss_backward", document=_DOCUMENT)
def l1_loss_backward(grad_output: Tensor, input: Tensor, target: Tensor, reduction: int) -> Tensor:
    """d|x - t|/dx = sign(x - t)."""
    return _spread(grad_output, input, reduction) * torch.sign(input - target)


@kernel("kl_div_backward", document=_DOCUMENT)
def kl_div_backward(
    grad_output: Tensor,
    input: Tensor,
    target: Tensor,
    reduction: int = _MEAN,
    *,
    log_target: bool = False,
) -> Tensor:
    """d t(log t - x)/dx = -t, with t = exp(target) where the target is a logarithm."""
    weight = target.exp() if log_target else target.clamp_min(0)
    return -weight * _spread(grad_output, input, reduction)


@kernel("kl_div_target_backward", document=_DOCUMENT)
def kl_div_target_backward(
    grad_output: Tensor,
    input: Tensor,
    target: Tensor,
    reduction: int = _MEAN,
    *,
    log_target: bool = False,
) -> Tensor:
    """d t(log t - x)/dt = log t + 1 - x; times t where the target is a logarithm."""
    grad = _spread(grad_output, input, reduction)
    if log_target:
        return grad * target.exp() * (target + 1 - input)
    return torch.where(target > 0, grad * (target.log() + 1 - input), 0.0)


@kernel("npu_binary_cross_entropy_with_logits_backward", document=_DOCUMENT)
def binary_cross_entropy_with_logits_backward(
    grad_output: Tensor,
    input: Tensor,
    target: Tensor,
    weight_opt: Tensor | None,
    pos_weight_opt: Tensor | None,
    reduction: int,
) -> Tensor:
    """d/dx of -w[p t log s(x) + (1 - t) log(1 - s(x))] = w[(1 - t + p t) s(x) - p t]."""
    positive = target if pos_weight_opt is None else pos_weight_opt * target
    grad = (1 - target + positive) * input.sigmoid() - positive
    if weight_opt is not None:
        grad = grad * weight_opt
    return grad * _spread(grad_output, input, reduction)


@kernel("repeat_interleave_backward_int", document=_DOCUMENT)
def repeat_interleave_backward_int(
    grad: Tensor, input: Tensor, repeats: int, dim: int | None = None
) -> Tensor:
    """Sum over the copies of each element: [.., n * repeats, ..] to [.., n, ..]."""
    if dim is None:
        return grad.reshape(-1, repeats).sum(-1).reshape(input.shape)
    dim %= input.dim()
    shape = (*input.shape[: dim + 1], repeats, *input.shape[dim + 1 :])
    return grad.reshape(shape).sum(dim + 1)


@kernel("repeat_interleave_backward_tensor", document=_DOCUMENT)
def repeat_interleave_backward_tensor(
    grad: Tensor, input: Tensor, repeats: Tensor, dim: int | None = None
) -> Tensor:
    """Sum over the copies of each element, `repeats[i]` of them for element i."""
    flat = input.reshape(-1) if dim is None else input
    axis = 0 if dim is None else dim
    owner = torch.arange(flat.shape[axis]).repeat_interleave(repeats.expand(flat.shape[axis]))
    return torch.zeros_like(flat).index_add_(axis, owner, grad).reshape(input.shape)


@kernel("fft_r2c_backward", document=_DOCUMENT)
def fft_r2c_backward(
    grad: Tensor, dim: list[int], normalization: int, onesided: bool, last_dim_size: int
) -> Tensor:
    """Real part of the inverse transform of the gradient, padded to two sides with zeros."""
    if onesided:
        shape = list(grad.shape)
        shape[dim[-1]] = last_dim_size
        full = grad.new_zeros(shape)
        full.narrow(dim[-1], 0, grad.shape[dim[-1]]).copy_(grad)
        grad = full
    inverse: Tensor = torch.ops.aten._fft_c2c.default(grad, dim, normalization, False)
    return inverse.real.clone()


@kernel("fft_c2r_backward", document=_DOCUMENT)
def fft_c2r_backward(grad: Tensor, dim: list[int], normalization: int) -> Tensor:
    """One-sided transform; a bin counts twice where its mirror image was left out."""
    result: Tensor = torch.ops.aten._fft_r2c.default(grad, dim, normalization, True)
    mirrored = grad.shape[dim[-1]] - result.shape[dim[-1]]
    if mirrored > 0:
        result.narrow(dim[-1], 1, mirrored).mul_(2)
    return result


@kernel("matmul_double_backward", document=_DOCUMENT)
def matmul_double_backward(
    grad_self: Tensor | None,
    grad_other: Tensor | None,
    grad_out: Tensor,
    input: Tensor,
    other: Tensor,
    mask: list[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Derivative of both gradients of `input @ other`, weighted with `grad_self`, `grad_other`.

    Returns:
        for grad_out: grad_self @ other + input @ grad_other; for input: that of
        `input @ grad_other`; for other: that of `grad_self @ other`.
    """
    to_out = to_input = to_other = None
    if grad_self is not None:
        to_out = torch.matmul(grad_self, other)
        to_other = matmul_backward(grad_out, grad_self, other, [False, True])[1]
    if grad_other is not None:
        product = torch.matmul(input, grad_other)
        to_out = product if to_out is None else to_out + product
        to_input = matmul_backward(grad_out, input, grad_other, [True, False])[0]
    results = (to_out, to_input, to_other)
    return tuple(r if wanted else None for r, wanted in zip(results, mask, strict=True))  # type: ignore[return-value]
