"""Reshapes, transposes, slices and sorts that copy: npu_confusion_transpose, npu_slice and such.

Every result is a new contiguous tensor. Follows the torch_npu pages of the same names.
"""

import torch
from torch import Tensor

from ascend_sim.kernels.rules import require
from ascend_sim.registry import kernel


def _check_perm(name: str, perm: list[int], num_dims: int) -> None:
    require(
        name,
        sorted(dim % num_dims if num_dims else dim for dim in perm) == list(range(num_dims)),
        f"perm {list(perm)} must name each of {num_dims} dimensions once",
    )


def _write(name: str, out: Tensor, value: Tensor) -> Tensor:
    require(name, out.dtype == value.dtype, "out must have the dtype of the result")
    out.resize_(value.shape)
    return out.copy_(value)


@kernel("npu_confusion_transpose", document="torch_npu-npu_confusion_transpose")
def confusion_transpose(
    input: Tensor, perm: list[int], shape: list[int], transpose_first: bool
) -> Tensor:
    """Transpose then reshape, or (not `transpose_first`) reshape then transpose.

    Raises:
        RuntimeError: `perm` is not a permutation, or `shape` does not fit.
    """
    name = "npu_confusion_transpose"
    if transpose_first:
        _check_perm(name, perm, input.dim())
        return input.permute(perm).reshape(shape).contiguous()
    _check_perm(name, perm, len(shape))
    return input.reshape(shape).permute(perm).contiguous()


@kernel("npu_confusion_transpose_backward", document="torch_npu-npu_confusion_transpose")
def confusion_transpose_backward(
    grad: Tensor, perm: list[int], shape: list[int], transpose_first: bool
) -> Tensor:
    """Undo `confusion_transpose`.

    Args:
        grad: gradient of the result.
        perm: of the forward call.
        shape: of the forward input.
        transpose_first: the opposite of the forward call's, as torch_npu's formula passes it.
    """
    inverse = [list(perm).index(dim) for dim in range(len(perm))]
    if transpose_first:
        return grad.permute(inverse).reshape(shape).contiguous()
    return grad.reshape([shape[dim] for dim in perm]).permute(inverse).contiguous()


@kernel("npu_transpose", document="torch_npu-npu_transpose")
def transpose(input: Tensor, perm: list[int], require_contiguous: bool = True) -> Tensor:
    """Return the permuted tensor, contiguous.

    Raises:
        RuntimeError: `perm` is not a permutation.
    """
    _check_perm("npu_transpose", perm, input.dim())
    return input.permute(perm).contiguous()


@kernel("npu_transpose.out", document="torch_npu-npu_transpose")
def transpose_out(
    input: Tensor, perm: list[int], require_contiguous: bool = True, *, out: Tensor
) -> Tensor:
    """Write `transpose` into `out`."""
    return _write("npu_transpose", out, transpose(input, perm, require_contiguous))


@kernel("npu_reshape", document="torch_npu-npu_reshape")
def reshape(input: Tensor, shape: list[int], can_refresh: bool = False) -> Tensor:
    """Return a copy with another shape."""
    return input.reshape(shape).clone()


@kernel("npu_reshape.out", document="torch_npu-npu_reshape")
def reshape_out(
    input: Tensor, shape: list[int], can_refresh: bool = False, *, out: Tensor
) -> Tensor:
    """Write `reshape` into `out`."""
    return _write("npu_reshape", out, input.reshape(shape))


@kernel("npu_slice", document="torch_npu-npu_slice")
def slice_tensor(input: Tensor, offsets: list[int], size: list[int]) -> Tensor:
    """Return the block of `size` that starts at `offsets`.

    Raises:
        RuntimeError: the block does not lie inside the tensor.
    """
    name = "npu_slice"
    dims = input.dim()
    require(name, len(offsets) == len(size) == dims, "offsets and size need one value a dimension")
    inside = all(
        offset >= 0 and length >= 0 and offset + length <= full
        for offset, length, full in zip(offsets, size, input.shape, strict=True)
    )
    require(name, inside, f"block {list(size)} at {list(offsets)} is not inside the tensor")
    block = tuple(
        slice(offset, offset + length) for offset, length in zip(offsets, size, strict=True)
    )
    return input[block].clone(memory_format=torch.contiguous_format)


@kernel("npu_slice.out", document="torch_npu-npu_slice")
def slice_out(input: Tensor, offsets: list[int], size: list[int], *, out: Tensor) -> Tensor:
    """Write `slice_tensor` into `out`."""
    return _write("npu_slice", out, slice_tensor(input, offsets, size))


@kernel("npu_broadcast", document="torch_npu-npu_broadcast")
def broadcast(input: Tensor, size: list[int]) -> Tensor:
    """Return the tensor expanded to `size`, contiguous."""
    return input.expand(size).contiguous()


@kernel("npu_broadcast.out", document="torch_npu-npu_broadcast")
def broadcast_out(input: Tensor, size: list[int], *, out: Tensor) -> Tensor:
    """Write `broadcast` into `out`."""
    return _write("npu_broadcast", out, input.expand(size))


@kernel("npu_sort_v2", document="torch_npu-npu_sort_v2")
def sort_v2(input: Tensor, dim: int = -1, descending: bool = False) -> Tensor:
    """Return the sorted values without their indices.

    Raises:
        RuntimeError: `dim` is not the last dimension.
    """
    require("npu_sort_v2", dim in (-1, input.dim() - 1), "dim must be the last dimension")
    return torch.sort(input, dim, descending).values


@kernel("npu_sort_v2.out", document="torch_npu-npu_sort_v2")
def sort_v2_out(input: Tensor, dim: int = -1, descending: bool = False, *, out: Tensor) -> Tensor:
    """Write `sort_v2` into `out`."""
    return _write("npu_sort_v2", out, sort_v2(input, dim, descending))


@kernel("one_", document="torch_npu-one_")
def one_(input: Tensor) -> Tensor:
    """Fill `input` with ones."""
    return input.fill_(1)
