"""The `grouped_gemm` package's product, computed by Ascend's npu_grouped_matmul.

    y_e = a_e b_e    for each expert e, a_e the next batch_sizes[e] rows of a

Gradients: da_e = dy_e b_e^T,  db_e = a_e^T dy_e (zeros for an expert without rows).
Follows the torch_npu page of npu_grouped_matmul: group_type 0 splits the rows of x, 2 the reduced
dimension; split_item 3 gives one output; group_list holds the ends of the groups.

Dims: t rows, e experts, k reduced size, n columns.
"""

import sys
from types import SimpleNamespace
from typing import Any

import torch

_ROWS, _REDUCED = 0, 2


class _GroupedProduct(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, a: torch.Tensor, b: torch.Tensor, ends: torch.Tensor, trans_b: bool
    ) -> torch.Tensor:
        ctx.save_for_backward(a, b, ends)
        ctx.trans_b = trans_b
        return _multiply(a, b.transpose(1, 2) if trans_b else b, ends, _ROWS)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        a, b, ends = ctx.saved_tensors
        grad = grad.contiguous()
        grad_a = grad_b = None
        if ctx.needs_input_grad[0]:
            grad_a = _multiply(grad, b if ctx.trans_b else b.transpose(1, 2), ends, _ROWS)
        if ctx.needs_input_grad[1]:
            left, right = (grad, a) if ctx.trans_b else (a, grad)
            grad_b = _multiply(left.t(), right, ends, _REDUCED).view(b.shape)
        return grad_a, grad_b, None, None


def _multiply(
    x: torch.Tensor, weight: torch.Tensor, ends: torch.Tensor, group_type: int
) -> torch.Tensor:
    import torch_npu

    (product,) = torch_npu.npu_grouped_matmul(
        [x],
        [weight],
        group_list=ends,
        split_item=3,
        group_type=group_type,
        group_list_type=0,
    )
    return product


def gmm(
    a: torch.Tensor, b: torch.Tensor, batch_sizes: torch.Tensor, trans_b: bool = False
) -> torch.Tensor:
    """Multiply consecutive rows of `a` with one matrix of `b` each.

    Args:
        a: [t, k], contiguous; bf16, fp16 or fp32, on an NPU.
        b: [e, k, n], or [e, n, k] with `trans_b`; the same dtype.
        batch_sizes: [e] integers, on any device; t in all, zeros allowed.
        trans_b: multiply with the transposed matrices.

    Returns:
        [t, n], the same dtype.

    Raises:
        ValueError: a and b differ in dtype.
    """
    if a.dtype != b.dtype:
        raise ValueError(f"moe_grouped_gemm: tokens are {a.dtype}, weights {b.dtype}")
    ends = batch_sizes.to(device=a.device, dtype=torch.int64).cumsum(0)
    product: torch.Tensor = _GroupedProduct.apply(a, b, ends, trans_b)
    return product


def find_grouped_gemm() -> Any:
    """What Megatron uses of the package, in a process with an NPU; None in any other."""
    torch_npu = sys.modules.get("torch_npu")
    if torch_npu is None or not hasattr(torch_npu, "npu_grouped_matmul"):
        return None
    return SimpleNamespace(ops=SimpleNamespace(gmm=gmm))
