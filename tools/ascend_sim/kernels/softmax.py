"""npu_scaled_masked_softmax and its gradient: softmax(mask(scale * x)) over the last dim.

A masked score becomes -10000, as in the accuracy checker Huawei gives out for this operator and in
Megatron's unfused softmax: next to a kept score its weight is zero in float32, and a row with
nothing kept becomes uniform.
"""

import torch
from torch import Tensor

from ascend_sim.kernels.checks import require_float, require_same_dtype, require_same_shape
from ascend_sim.kernels.rules import require
from ascend_sim.registry import kernel

_MASKED = -10000.0
_SHORTEST, _LONGEST, _MULTIPLE = 32, 4096, 32


def _full_mask(operator: str, x: Tensor, mask: Tensor, fixed_triu_mask: bool) -> Tensor:
    """The mask broadcast over x, with the strict upper triangle where asked."""
    rule = f"x must have 4 dims, not {x.dim()}"
    require(operator, x.dim() == 4, rule)
    for name, size in (("H", x.shape[2]), ("W", x.shape[3])):
        fits = _SHORTEST <= size <= _LONGEST and size % _MULTIPLE == 0
        rule = f"{name} = {size} must be a multiple of {_MULTIPLE} in [{_SHORTEST}, {_LONGEST}]"
        require(operator, fits, rule)
    require(operator, mask.dtype == torch.bool, f"mask must be bool, not {mask.dtype}")
    aligned = (1,) * (4 - mask.dim()) + tuple(mask.shape)
    fits = len(aligned) == 4 and all(m in (1, s) for m, s in zip(aligned, x.shape, strict=True))
    rule = f"mask {tuple(mask.shape)} does not broadcast to x {tuple(x.shape)}"
    require(operator, fits, rule)
    if fixed_triu_mask:
        # The generated mask takes the place of the given one, which must not be lost silently.
        empty = not bool(mask.any())
        require(operator, empty, "fixed_triu_mask ignores the mask: give one without a true entry")
        mask = mask.new_ones(x.shape[2:]).triu(1)
    return mask.expand(x.shape)


@kernel("npu_scaled_masked_softmax", document="torch_npu-npu_scaled_masked_softmax.md")
def npu_scaled_masked_softmax(
    x: Tensor, mask: Tensor, scale: float = 1, fixed_triu_mask: bool = False
) -> Tensor:
    """softmax over the last dim of scale * x, masked scores replaced by -10000.

    Args:
        x: [N, C, H, W], H and W multiples of 32 in [32, 4096].
        mask: bool, broadcastable to x; true masks out.
        scale: factor of x.
        fixed_triu_mask: mask above the diagonal, in place of `mask`, which must then be all false.
            The newer documents call it unfinished; the one in the wheel describes it so.
    """
    operator = "npu_scaled_masked_softmax"
    require_float(operator, x=x)
    masked = _full_mask(operator, x, mask, fixed_triu_mask)
    scores = (x.float() * float(scale)).masked_fill(masked, _MASKED)
    return torch.softmax(scores, -1).to(x.dtype)


@kernel("npu_scaled_masked_softmax_backward", document="torch_npu-npu_scaled_masked_softmax.md")
def npu_scaled_masked_softmax_backward(
    y_grad: Tensor, y: Tensor, mask: Tensor, scale: float, fixed_triu_mask: bool
) -> Tensor:
    """scale * y * (dy - sum(dy * y)), zero where masked."""
    operator = "npu_scaled_masked_softmax_backward"
    require_float(operator, y=y)
    require_same_dtype(operator, y_grad=y_grad, y=y)
    require_same_shape(operator, y_grad=y_grad, y=y)
    masked = _full_mask(operator, y, mask, fixed_triu_mask)
    weights, grad = y.float(), y_grad.float()
    dx = weights * (grad - (grad * weights).sum(-1, keepdim=True)) * float(scale)
    return dx.masked_fill(masked, 0.0).to(y_grad.dtype)
