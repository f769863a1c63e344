"""Backward operators that torch_npu's autograd formulas call and the CPU does not have."""

import torch

from ascend_sim.aten import register


def _fold(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1, tensor.shape[-1])


@register("matmul_backward")
def matmul_backward(
    grad: torch.Tensor, self: torch.Tensor, other: torch.Tensor, mask: list[bool]
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Gradients of `matmul(self, other)` in all its forms (vector, matrix, broadcast batches).

    Dims: ... batch, n rows, k inner, m columns. A vector is a matrix of one row (left) or column
    (right).
    """
    left = self.unsqueeze(0) if self.dim() == 1 else self
    right = other.unsqueeze(1) if other.dim() == 1 else other
    out = grad.unsqueeze(-1) if other.dim() == 1 else grad
    out = out.unsqueeze(-2) if self.dim() == 1 else out
    grad_left = grad_right = None
    if mask[0]:
        grad_left = torch.matmul(out, right.mT).sum_to_size(left.shape).reshape(self.shape)
    if mask[1] and right.dim() == 2:
        # One product over all batches, not a product a batch that is summed afterwards.
        grad_right = torch.mm(_fold(left).t(), _fold(out)).reshape(other.shape)
    elif mask[1]:
        grad_right = torch.matmul(left.mT, out).sum_to_size(right.shape).reshape(other.shape)
    return grad_left, grad_right
