"""Scatters and extremes: the small indexing operators that torch_npu has of its own.

Operators: npu_scatter_nd_update(_), npu_max.dim and npu_min.dim with their gradients, and
npu_gather_backward. Follows the torch_npu pages; the last one is the gradient of torch.gather.
"""

import torch
from torch import Tensor

from ascend_sim.kernels.rules import INDICES, require, require_dtype
from ascend_sim.registry import kernel


@kernel("npu_scatter_nd_update_", document="torch_npu-npu_scatter_nd_update_")
def scatter_nd_update_(input: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """Write `updates` at the places that the last dimension of `indices` names.

    Args:
        input: 1-D to 8-D, written.
        indices: [..., a], int32 or int64, a at most the dimensions of input.
        updates: indices.shape[:-1] + input.shape[a:], dtype of input.

    Returns:
        `input`.

    Raises:
        RuntimeError: a documented rule is broken.
    """
    name = "npu_scatter_nd_update_"
    require_dtype(name, "indices", indices, INDICES)
    require(name, indices.dim() >= 2, "indices must be at least 2-D")
    depth = indices.size(-1)
    require(name, depth <= input.dim(), "indices name more dimensions than input has")
    require(name, updates.dtype == input.dtype, "updates must have the dtype of input")
    shape = indices.shape[:-1] + input.shape[depth:]
    require(name, updates.shape == shape, f"updates must be {list(shape)}")
    places = indices.reshape(-1, depth).long()
    limits = torch.tensor(input.shape[:depth])
    require(name, bool(((places >= 0) & (places < limits)).all()), "indices are out of range")
    input[tuple(places.unbind(1))] = updates.reshape(-1, *input.shape[depth:])
    return input


@kernel("npu_scatter_nd_update", document="torch_npu-npu_scatter_nd_update")
def scatter_nd_update(input: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """`scatter_nd_update_` on a copy."""
    return scatter_nd_update_(input.clone(), indices, updates)


@kernel("npu_max.dim", document="torch_npu-npu_max")
def max_dim(input: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Greatest values along `dim` and their places (int32)."""
    values, places = input.max(dim, keepdim)
    return values, places.to(torch.int32)


@kernel("npu_min.dim", document="torch_npu-npu_min")
def min_dim(input: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Smallest values along `dim` and their places (int32)."""
    values, places = input.min(dim, keepdim)
    return values, places.to(torch.int32)


@kernel("npu_max_backward", document="torch_npu-npu_max")
def max_backward(
    grad: Tensor, dim: int, indices: Tensor, sizes: list[int], keepdim: bool
) -> Tensor:
    """Put the gradient where the extreme value stood."""
    if not keepdim and sizes:
        grad, indices = grad.unsqueeze(dim), indices.unsqueeze(dim)
    return grad.new_zeros(list(sizes)).scatter_(dim, indices.long(), grad)


@kernel("npu_min_backward", document="torch_npu-npu_min")
def min_backward(
    grad: Tensor, dim: int, indices: Tensor, sizes: list[int], keepdim: bool
) -> Tensor:
    """As `max_backward`."""
    return max_backward(grad, dim, indices, sizes, keepdim)


@kernel("npu_gather_backward", document="torch gather")
def gather_backward(
    grad: Tensor, self_size: list[int], dim: int, index: Tensor, sparse_grad: bool
) -> Tensor:
    """Gradient of torch.gather: add `grad` up at the places gathered.

    Raises:
        RuntimeError: a sparse gradient is asked for.
    """
    require("npu_gather_backward", not sparse_grad, "sparse_grad must be False")
    total = torch.zeros(list(self_size), dtype=torch.float32)
    return total.scatter_add_(dim, index.long(), grad.float()).to(grad.dtype)
