"""Plain matrix products with their gradients: npu_linear and npu_bmmV2.

Products accumulate in float32 and are cast once. Follows the torch_npu pages of both operators and
torch_npu's autograd formulas, which call the backward operators.
"""

import torch
from torch import Tensor

from ascend_sim.kernels.rules import FLOATS, multiply_in_fp32, require, require_dtype
from ascend_sim.registry import kernel

_BMM_DTYPES = (torch.float16, torch.float32, torch.int32)


@kernel("npu_linear", document="torch_npu-npu_linear")
def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """input @ weight^T + bias.

    Args:
        input: [m, k], fp16, bf16 or fp32.
        weight: [n, k], dtype of input.
        bias: [n].

    Returns:
        [m, n] in the dtype of input.

    Raises:
        RuntimeError: a documented rule is broken.
    """
    name = "npu_linear"
    require(name, input.dim() == 2 and weight.dim() == 2, "input and weight must be 2-D")
    require_dtype(name, "input", input, FLOATS)
    require(name, weight.dtype == input.dtype, "input and weight must have one dtype")
    require(name, input.size(1) == weight.size(1), "input and weight must agree about k")
    product = multiply_in_fp32(input, weight.T)
    if bias is not None:
        require(name, bias.shape == weight.shape[:1], "bias must have one value per output")
        product = product + bias.float()
    return product.to(input.dtype)


@kernel("npu_linear_backward", document="torch_npu-npu_linear")
def linear_backward(grad: Tensor, input: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of input and weight, both in the dtype of `grad`; the bias' is autograd's sum."""
    grad_input = multiply_in_fp32(grad, weight).to(grad.dtype)
    return grad_input, multiply_in_fp32(grad.T, input).to(grad.dtype)


def _sum_to(product: Tensor, shape: list[int]) -> Tensor:
    """Sum broadcast batch dimensions so that `shape` remains."""
    if not shape or list(product.shape) == shape:
        return product
    return product.sum_to_size(shape)


@kernel("npu_bmmV2", document="torch_npu-npu_bmmV2")
def bmm_v2(input: Tensor, mat2: Tensor, output_sizes: list[int]) -> Tensor:
    """Batched product with broadcasting, summed over batch dimensions to `output_sizes`.

    Args:
        input: [..., m, k], fp16, fp32 or int32.
        mat2: [..., k, n], dtype of input.
        output_sizes: empty, or the shape of the result (torch_npu's own gradients use it).

    Returns:
        [..., m, n] in the dtype of input.

    Raises:
        RuntimeError: a documented rule is broken.
    """
    name = "npu_bmmV2"
    require_dtype(name, "input", input, _BMM_DTYPES)
    require(name, mat2.dtype == input.dtype, "input and mat2 must have one dtype")
    if input.dtype == torch.int32:
        return _sum_to(torch.matmul(input, mat2), list(output_sizes)).to(torch.int32)
    return _sum_to(multiply_in_fp32(input, mat2), list(output_sizes)).to(input.dtype)


def _as_matrices(grad: Tensor, mat1: Tensor, mat2: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Give vectors, and the gradient of their product, the dimension matmul dropped."""
    if mat1.dim() == 1:
        grad, mat1 = grad.unsqueeze(-2), mat1.unsqueeze(0)
    if mat2.dim() == 1:
        grad, mat2 = grad.unsqueeze(-1), mat2.unsqueeze(1)
    return grad, mat1, mat2


@kernel("npu_bmm_v2_mat1_backward", document="torch_npu-npu_bmmV2")
def bmm_v2_mat1_backward(grad: Tensor, mat1: Tensor, mat2: Tensor, size: list[int]) -> Tensor:
    """grad @ mat2^T, summed over the batch dimensions that mat1 was broadcast along."""
    grad, matrix1, matrix2 = _as_matrices(grad, mat1, mat2)
    product = multiply_in_fp32(grad, matrix2.transpose(-2, -1))
    return product.sum_to_size(matrix1.shape).reshape(list(size)).to(grad.dtype)


@kernel("npu_bmm_v2_mat2_backward", document="torch_npu-npu_bmmV2")
def bmm_v2_mat2_backward(grad: Tensor, mat1: Tensor, mat2: Tensor, size: list[int]) -> Tensor:
    """mat1^T @ grad, summed over the batch dimensions that mat2 was broadcast along."""
    grad, matrix1, matrix2 = _as_matrices(grad, mat1, mat2)
    product = multiply_in_fp32(matrix1.transpose(-2, -1), grad)
    return product.sum_to_size(matrix2.shape).reshape(list(size)).to(grad.dtype)
