"""Grouped matrix multiplication: one product for each expert, in one call.

Operators: npu_grouped_matmul, with group_list as Tensor and as List[int]. Quantised inputs: int8
with per-channel or per-token scales, and int8 weights with float activations; int4, fp8 and mx
inputs are refused. Follows the torch_npu page of npu_grouped_matmul.

Dims: e groups, m rows of x, k reduced size, n columns.
"""

import torch
from torch import Tensor

from ascend_sim.kernels.grouped_products import (
    Scaling,
    check_dtypes,
    check_lists,
    check_scenario,
    group_sizes,
    multiply_column_groups,
    multiply_row_groups,
    split_per_group,
)
from ascend_sim.kernels.rules import FLOATS, refuse, require, require_dtype, resolve_dtype
from ascend_sim.registry import kernel

_NAME = "npu_grouped_matmul"
_DOCUMENT = "torch_npu-npu_grouped_matmul"


@kernel("npu_grouped_matmul", document=_DOCUMENT)
def grouped_matmul(
    x: list[Tensor],
    weight: list[Tensor],
    *,
    bias: list[Tensor] | None = None,
    scale: list[Tensor] | None = None,
    offset: list[Tensor] | None = None,
    antiquant_scale: list[Tensor] | None = None,
    antiquant_offset: list[Tensor] | None = None,
    per_token_scale: list[Tensor] | None = None,
    group_list: Tensor | None = None,
    activation_input: list[Tensor] | None = None,
    activation_quant_scale: list[Tensor] | None = None,
    activation_quant_offset: list[Tensor] | None = None,
    split_item: int | None = 0,
    group_type: int | None = None,
    group_list_type: int | None = 0,
    act_type: int | None = 0,
    tuning_config: list[int] | None = None,
    output_dtype: int | None = None,
    x_dtype: int | None = None,
    weight_dtype: int | None = None,
    scale_dtype: int | None = None,
    per_token_scale_dtype: int | None = None,
) -> list[Tensor]:
    """Multiply each group of x with its weight.

    Args:
        x: one [m, k] tensor, or one for each group; [k, t] (a transposed view) for group_type 2.
        weight: one [e, k, n] tensor or e of [k, n]; [t, n] for group_type 2.
        bias: one for each weight, 1-D; fp16 with fp16, fp32 with bf16 and fp32, int32 with int8.
        scale: with int8 inputs, [n] each or one [e, n].
        offset: only None.
        antiquant_scale: with int8 weights and float x, [n] each or one [e, n].
        antiquant_offset: as `antiquant_scale`, added before scaling.
        per_token_scale: with int8 inputs, one fp32 [m].
        group_list: int64; how the grouped axis is cut.
        activation_input: only None; so are `activation_quant_scale` and `_offset`.
        split_item: 0 and 1 give a tensor for each group, 2 and 3 a single one.
        group_type: -1 no grouping, 0 rows of x, 2 the reduced axis.
        group_list_type: 0 cumulative ends, 1 sizes, 2 pairs of group and size (int8, group_type 0).
        act_type: 0 none, 1 relu, 2 gelu (tanh), 5 silu; only with per_token_scale.
        tuning_config: a hint, not read.
        output_dtype: dtype id, by default the dtype of x.

    Returns:
        The products: [m, n], or [e, k, n] for group_type 2, in a list.

    Raises:
        RuntimeError: a documented rule is broken.
        NotImplementedError: a documented mode that has no reference computation here.
    """
    require(_NAME, group_type in (-1, 0, 2), f"group_type must be -1, 0 or 2, not {group_type}")
    for argument, value in (
        ("offset", offset),
        ("activation_input", activation_input),
        ("activation_quant_scale", activation_quant_scale),
        ("activation_quant_offset", activation_quant_offset),
    ):
        require(_NAME, not value, f"{argument} must be None")
    for value_dtype in (x_dtype, weight_dtype, scale_dtype, per_token_scale_dtype):
        if value_dtype is not None:
            refuse(_NAME, f"an input of dtype id {value_dtype}")
    split, kind, listing = split_item or 0, int(group_type or 0), group_list_type or 0
    check_lists(x, weight, split)
    check_scenario(x, weight, split, kind, group_list is not None)
    scaling = Scaling(
        bias=split_per_group(bias or None),
        scale=split_per_group(scale or None),
        per_token_scale=per_token_scale or None,
        antiquant_scale=split_per_group(antiquant_scale or None),
        antiquant_offset=split_per_group(antiquant_offset or None),
        act_type=act_type or 0,
    )
    check_dtypes(x, weight, scaling)
    pairs_fit = x[0].dtype == torch.int8 and kind == 0
    require(_NAME, listing != 2 or pairs_fit, "group_list_type 2 needs int8 x and group_type 0")
    dtype = resolve_dtype(_NAME, output_dtype, x[0].dtype)
    sizes = None if group_list is None else group_sizes(_NAME, group_list, listing)

    if kind == 2:
        assert sizes is not None
        require_dtype(_NAME, "x with group_type 2", x[0], FLOATS)
        require(_NAME, scaling.bias is None, "group_type 2 takes no bias")
        return [multiply_column_groups(x[0], weight[0], sizes).to(dtype)]
    matrices = list(weight[0].unbind(0)) if weight[0].dim() == 3 else list(weight)
    order = None
    if listing == 2:
        assert group_list is not None
        order = [int(group) for group in group_list[:, 0]]
    products = multiply_row_groups(x, matrices, sizes, scaling, order)
    return _collect(products, split, dtype)


def _collect(products: list[Tensor], split_item: int, dtype: torch.dtype) -> list[Tensor]:
    if split_item in (2, 3):
        same = len({product.size(-1) for product in products}) == 1
        require(_NAME, same, "a single output needs weights of equal n")
        products = [torch.cat(products)]
    if dtype == torch.int8:
        return [product.round().clamp(-128, 127).to(dtype) for product in products]
    return [product.to(dtype) for product in products]


@kernel("npu_grouped_matmul.List", document=_DOCUMENT)
def grouped_matmul_list(
    x: list[Tensor],
    weight: list[Tensor],
    *,
    bias: list[Tensor] | None = None,
    scale: list[Tensor] | None = None,
    offset: list[Tensor] | None = None,
    antiquant_scale: list[Tensor] | None = None,
    antiquant_offset: list[Tensor] | None = None,
    per_token_scale: list[Tensor] | None = None,
    group_list: list[int] | None = None,
    activation_input: list[Tensor] | None = None,
    activation_quant_scale: list[Tensor] | None = None,
    activation_quant_offset: list[Tensor] | None = None,
    split_item: int | None = 0,
    group_type: int | None = None,
    group_list_type: int | None = 0,
    act_type: int | None = 0,
    output_dtype: torch.dtype | None = None,
) -> list[Tensor]:
    """The form with cumulative ends as a Python list; rows are grouped.

    Args and result as in `grouped_matmul`. Here a single x may also give one output for each
    weight (split_item 0 or 1), and `weight` is always a list of 2-D tensors.

    Raises:
        RuntimeError: a documented rule is broken.
        NotImplementedError: int8 inputs, whose scale here is a packed int64.
    """
    for argument, value in (
        ("offset", offset),
        ("per_token_scale", per_token_scale),
        ("activation_input", activation_input),
        ("activation_quant_scale", activation_quant_scale),
        ("activation_quant_offset", activation_quant_offset),
        ("group_type", group_type),
        ("group_list_type", group_list_type),
        ("act_type", act_type),
    ):
        require(_NAME, not value, f"{argument} must be None when group_list is a list")
    split = split_item or 0
    check_lists(x, weight, split)
    if scale or x[0].dtype == torch.int8:
        refuse(_NAME, "int8 x with group_list as a list")
    require(_NAME, all(matrix.dim() == 2 for matrix in weight), "weights must be 2-D")
    scaling = Scaling(
        bias or None, None, None, antiquant_scale or None, antiquant_offset or None, act_type=0
    )
    check_dtypes(x, weight, scaling)
    sizes = None
    if group_list:
        require(_NAME, len(group_list) > 1, "group_list must have more than one entry")
        require(_NAME, all(tensor.dim() == 2 for tensor in x), "group_list needs 2-D x")
        sizes = group_sizes(_NAME, torch.tensor(group_list), 0)
    require(_NAME, len(x) > 1 or len(weight) == 1 or sizes is not None, "group_list must be given")
    products = multiply_row_groups(list(x), list(weight), sizes, scaling)
    return _collect(products, split, output_dtype or x[0].dtype)
