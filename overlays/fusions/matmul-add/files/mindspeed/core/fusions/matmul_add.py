"""gradient_accumulation_fusion on an NPU: main_grad += grad_output^T @ total_input in one launch.

Upstream has this from Apex's CUDA extension alone. `torch_npu.npu_grouped_matmul_add_` with one
group adds a product of fp16 or bf16 to fp32 in place: the product is never rounded to 16 bits, and
never stands in memory. In one dtype it is `addmm_`.
"""

import sys
from typing import Any

import torch
from mindspeed.core.hooks import AddGrad
from mindspeed.core.operators import require_operator

_HALVES = (torch.float16, torch.bfloat16)


def attach_matmul_add(layer: Any, inner: AddGrad | None) -> AddGrad | None:
    """What adds the weight gradient of a linear layer; upstream's own where there is no NPU.

    Args:
        layer: a ColumnParallelLinear or RowParallelLinear under construction.
        inner: what another feature has made.

    Raises:
        RuntimeError: torch_npu lacks the operator.
    """
    npu = sys.modules.get("torch_npu")
    if npu is None or not npu.npu.is_available():
        return inner
    require_operator("npu_grouped_matmul_add_", option="gradient_accumulation_fusion")
    return add_weight_grad


def add_weight_grad(
    total_input: torch.Tensor, grad_output: torch.Tensor, main_grad: torch.Tensor
) -> None:
    """main_grad += grad_output^T @ total_input, in place.

    Args:
        total_input: [t, i], fp32, fp16 or bf16; t may be 0.
        grad_output: [t, o], same dtype.
        main_grad: [o, i], contiguous, fp32 or the same dtype.

    Raises:
        TypeError: main_grad has a third dtype.
    """
    num_tokens, dtype = total_input.size(0), total_input.dtype
    if num_tokens == 0:
        return
    if main_grad.dtype == dtype:
        main_grad.addmm_(grad_output.t(), total_input)
    elif main_grad.dtype == torch.float32 and dtype in _HALVES:
        import torch_npu

        ends = torch.full((1,), num_tokens, dtype=torch.int64, device=main_grad.device)
        torch_npu.npu_grouped_matmul_add_(main_grad.unsqueeze(0), grad_output, total_input, ends)
    else:
        raise TypeError(
            f"gradient_accumulation_fusion adds gradients of {dtype} to {dtype} or torch.float32,"
            f" and main_grad is {main_grad.dtype}; see grad_reduce_in_fp32, or switch it off"
        )
