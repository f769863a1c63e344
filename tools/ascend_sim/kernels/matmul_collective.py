"""Matrix products fused with a collective of tensor parallelism.

Operators: npu_all_gather_base_mm, npu_mm_reduce_scatter_base, npu_mm_all_reduce_base. Products
accumulate in float32 and are cast to the output dtype before they are sent, so that a call sends
the bytes the device would send. The quantised modes are refused. Follows the torch_npu pages.

Dims: m rows on this rank, k reduced size, n columns, p ranks.
"""

import torch
from torch import Tensor

from ascend_sim.kernels.comm import all_gather, all_reduce, find_group, reduce_scatter
from ascend_sim.kernels.rules import multiply_in_fp32, refuse, require, require_dtype
from ascend_sim.registry import kernel

_HALVES = (torch.float16, torch.bfloat16)
_K_RANGE = range(256, 65535)
_WORLD_SIZES = (2, 4, 8, 16, 32)


def _check_product(name: str, x1: Tensor, x2: Tensor, bias: Tensor | None) -> None:
    require_dtype(name, "x1", x1, _HALVES)
    require(name, x2.dtype == x1.dtype, "x1 and x2 must have one dtype")
    require(name, x2.dim() == 2, f"x2 must be 2-D, not {x2.dim()}-D")
    require(name, x1.size(-1) == x2.size(0), "x1 and x2 must agree about k")
    transposed = x1.dim() == 2 and min(x1.shape) > 1 and not x1.is_contiguous()
    require(name, not transposed, "x1 must not be transposed")
    if bias is not None:
        require(name, bias.shape == x2.shape[1:], "bias must have one value per column")


def _check_base(
    name: str,
    x1: Tensor,
    x2: Tensor,
    world_size: int,
    bias: Tensor | None,
    comm_turn: int,
    output_dtype: torch.dtype | None,
) -> None:
    """The rules that all_gather_base_mm and mm_reduce_scatter_base share."""
    require(name, world_size in _WORLD_SIZES, f"world_size must be in {list(_WORLD_SIZES)}")
    require(name, x1.dim() == 2, f"input must be 2-D, not {x1.dim()}-D")
    _check_product(name, x1, x2, bias)
    require(name, x1.size(1) in _K_RANGE, f"k must be in [256, 65535), not {x1.size(1)}")
    require(name, comm_turn == 0, "comm_turn must be 0")
    require(name, output_dtype is None, "output_dtype needs quantised inputs")
    if bias is not None:
        require(name, bias.dtype == x1.dtype, "bias must have the dtype of input")
        require(name, not bool(bias.any()), "a bias other than zero is not available")


@kernel("npu_all_gather_base_mm", document="torch_npu-npu_all_gather_base_mm")
def all_gather_base_mm(
    input: Tensor,
    x2: Tensor,
    hcom: str,
    world_size: int,
    *,
    bias: Tensor | None = None,
    x1_scale: Tensor | None = None,
    x2_scale: Tensor | None = None,
    gather_index: int = 0,
    gather_output: bool = True,
    comm_turn: int = 0,
    output_dtype: torch.dtype | None = None,
    comm_mode: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Gather the rows of all ranks and multiply them: (all of input) @ x2.

    Args:
        input: [m, k], fp16 or bf16, 256 <= k < 65535.
        x2: [k, n], dtype of input, may be a transposed view.
        hcom: communicator name of the group.
        world_size: p, in {2, 4, 8, 16, 32}.
        bias: None or zeros [n].
        x1_scale: quantised mode, not simulated; so is `x2_scale`.
        gather_index: only 0.
        gather_output: also return the gathered input.
        comm_turn: only 0.
        output_dtype: only None.
        comm_mode: how it is carried out; no effect on the result.

    Returns:
        [p·m, n], and [p·m, k] or an empty tensor.

    Raises:
        RuntimeError: a documented rule is broken.
        NotImplementedError: a quantised mode.
    """
    name = "npu_all_gather_base_mm"
    if x1_scale is not None or x2_scale is not None:
        refuse(name, "quantised input")
    _check_base(name, input, x2, world_size, bias, comm_turn, output_dtype)
    require(name, gather_index == 0, "gather_index must be 0")
    gathered = all_gather(find_group(name, hcom, world_size), input)
    product = multiply_in_fp32(gathered, x2).to(input.dtype)
    return product, gathered if gather_output else input.new_empty(0)


@kernel("npu_mm_reduce_scatter_base", document="torch_npu-npu_mm_reduce_scatter_base")
def mm_reduce_scatter_base(
    input: Tensor,
    x2: Tensor,
    hcom: str,
    world_size: int,
    *,
    reduce_op: str = "sum",
    bias: Tensor | None = None,
    x1_scale: Tensor | None = None,
    x2_scale: Tensor | None = None,
    comm_turn: int = 0,
    output_dtype: torch.dtype | None = None,
    comm_mode: str | None = None,
) -> Tensor:
    """Multiply, add the products of all ranks, and keep this rank's rows.

    Args:
        input: [m, k], fp16 or bf16, p divides m, 256 <= k < 65535.
        x2: [k, n], dtype of input.
        reduce_op: only "sum".
        The other arguments: as for `all_gather_base_mm`.

    Returns:
        [m / p, n] in the dtype of input.

    Raises:
        RuntimeError: a documented rule is broken.
        NotImplementedError: a quantised mode.
    """
    name = "npu_mm_reduce_scatter_base"
    if x1_scale is not None or x2_scale is not None:
        refuse(name, "quantised input")
    _check_base(name, input, x2, world_size, bias, comm_turn, output_dtype)
    require(name, reduce_op == "sum", 'reduce_op must be "sum"')
    require(name, input.size(0) % world_size == 0, "world_size must divide the rows of input")
    product = multiply_in_fp32(input, x2).to(input.dtype)
    return reduce_scatter(find_group(name, hcom, world_size), product)


@kernel("npu_mm_all_reduce_base", document="torch_npu-npu_mm_all_reduce_base")
def mm_all_reduce_base(
    x1: Tensor,
    x2: Tensor,
    hcom: str,
    *,
    reduce_op: str = "sum",
    bias: Tensor | None = None,
    antiquant_scale: Tensor | None = None,
    antiquant_offset: Tensor | None = None,
    x3: Tensor | None = None,
    dequant_scale: Tensor | None = None,
    pertoken_scale: Tensor | None = None,
    comm_quant_scale_1: Tensor | None = None,
    comm_quant_scale_2: Tensor | None = None,
    antiquant_group_size: int = 0,
    comm_turn: int = 0,
    group_sizes: list[int] | None = None,
    y_dtype: int | None = None,
    x1_dtype: int | None = None,
    x2_dtype: int | None = None,
    dequant_scale_dtype: int | None = None,
    pertoken_scale_dtype: int | None = None,
    comm_quant_mode: int = 0,
    comm_mode: str | None = None,
) -> Tensor:
    """Sum over the ranks of x1 @ x2 + bias + x3.

    Args:
        x1: [m, k] or [b, s, k], fp16 or bf16.
        x2: [k, n], dtype of x1.
        hcom: communicator name of the group.
        reduce_op: only "sum".
        bias: [n], dtype of x1, added on every rank, before the sum.
        x3: shape and dtype of the result, added like the bias.
        comm_turn: only 0.
        The other arguments: quantised modes, not simulated.

    Returns:
        [..., n] in the dtype of x1.

    Raises:
        RuntimeError: a documented rule is broken.
        NotImplementedError: a quantised mode.
    """
    name = "npu_mm_all_reduce_base"
    scales = (
        antiquant_scale,
        antiquant_offset,
        dequant_scale,
        pertoken_scale,
        comm_quant_scale_1,
        comm_quant_scale_2,
    )
    if any(scale is not None for scale in scales):
        refuse(name, "a quantised mode")
    ids = (y_dtype, x1_dtype, x2_dtype, dequant_scale_dtype, pertoken_scale_dtype)
    if any(dtype is not None for dtype in ids):
        refuse(name, "an explicit dtype id")
    require(name, x1.dim() in (2, 3), f"x1 must be 2-D or 3-D, not {x1.dim()}-D")
    _check_product(name, x1, x2, bias)
    require(name, reduce_op == "sum", 'reduce_op must be "sum"')
    require(name, comm_turn == 0, "comm_turn must be 0")
    product = multiply_in_fp32(x1, x2)
    if bias is not None:
        require(name, bias.dtype == x1.dtype, "bias must have the dtype of x1")
        product = product + bias.float()
    if x3 is not None:
        require(name, x3.shape == product.shape, "x3 must have the shape of the result")
        require(name, x3.dtype == x1.dtype, "x3 must have the dtype of the result")
        product = product + x3.float()
    return all_reduce(find_group(name, hcom, None), product.to(x1.dtype))
