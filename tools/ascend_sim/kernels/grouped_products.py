"""The rules and the arithmetic of npu_grouped_matmul, whatever the form of its group_list.

Products accumulate in float32. Follows the torch_npu page of npu_grouped_matmul (its numbered
formulas and its table of scenarios).

Dims: e groups, m rows of x, k reduced size, n columns.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

from ascend_sim.kernels.rules import (
    FLOATS,
    multiply_in_fp32,
    refuse,
    require,
    require_dtype,
)

_NAME = "npu_grouped_matmul"
_INNER_LIMIT = 65536
_MAX_TENSORS = 128
_MAX_GROUPS = 1024


@dataclass(frozen=True)
class Scaling:
    """The optional per-group operands, each a list of e tensors or None."""

    bias: list[Tensor] | None
    scale: list[Tensor] | None
    per_token_scale: list[Tensor] | None
    antiquant_scale: list[Tensor] | None
    antiquant_offset: list[Tensor] | None
    act_type: int


def group_sizes(name: str, group_list: Tensor, group_list_type: int) -> list[int]:
    """Return the size of each group from cumulative ends (type 0), counts (1) or pairs (2).

    Pairs are (group number, size), in the order of the rows; groups not named are empty.
    """
    require_dtype(name, "group_list", group_list, (torch.int64,))
    require(name, group_list_type in (0, 1, 2), "group_list_type must be 0, 1 or 2")
    require(name, group_list.size(0) <= _MAX_GROUPS, f"at most {_MAX_GROUPS} groups")
    if group_list_type == 2:
        require(
            name, group_list.dim() == 2 and group_list.size(1) == 2, "group_list must be [E, 2]"
        )
        sizes = [int(size) for size in group_list[:, 1]]
    else:
        require(name, group_list.dim() == 1, "group_list must be 1-D")
        sizes = [int(size) for size in group_list]
        if group_list_type == 0:
            sizes = [end - start for start, end in zip([0, *sizes], sizes, strict=False)]
        else:
            require(name, len(sizes) > 1, "counts in group_list must be for more than one group")
    rule = "non-decreasing ends" if group_list_type == 0 else "non-negative sizes"
    require(name, all(size >= 0 for size in sizes), f"group_list must hold {rule}")
    return sizes


def check_lists(x: list[Tensor], weight: list[Tensor], split_item: int) -> None:
    require(_NAME, len(x) > 0 and len(weight) > 0, "neither x nor weight may be empty")
    require(_NAME, max(len(x), len(weight)) <= _MAX_TENSORS, f"at most {_MAX_TENSORS} tensors")
    require(_NAME, split_item in (0, 1, 2, 3), "split_item must be 0, 1, 2 or 3")
    for tensor in [*x, *weight]:
        # A transposed operand is a strided view; its inner axis is the one with stride 1.
        inner = tensor.size(-2) if _is_transposed(tensor) else tensor.size(-1)
        require(_NAME, inner < _INNER_LIMIT, f"an inner axis must be below {_INNER_LIMIT}")
    for tensor in weight:
        require(_NAME, tensor.dim() in (2, 3), "weights must be 2-D or 3-D")


def _is_transposed(tensor: Tensor) -> bool:
    if tensor.dim() < 2 or tensor.is_contiguous():
        return False
    return tensor.stride(-2) == 1 and tensor.stride(-1) == tensor.size(-2)


def check_dtypes(x: list[Tensor], weight: list[Tensor], scaling: Scaling) -> None:
    x_dtype, weight_dtype = x[0].dtype, weight[0].dtype
    for tensors in (x, weight):
        same = all(tensor.dtype == tensors[0].dtype for tensor in tensors)
        require(_NAME, same, "all tensors of a list must have one dtype")
    if x_dtype == torch.int8:
        if weight_dtype != torch.int8:
            refuse(_NAME, f"int8 x with {weight_dtype} weight")
        require(_NAME, scaling.scale is not None, "int8 x needs scale")
        return
    require_dtype(_NAME, "x", x[0], FLOATS)
    require(_NAME, scaling.scale is None, "scale needs int8 x")
    require(_NAME, scaling.per_token_scale is None, "per_token_scale needs int8 x")
    require(_NAME, scaling.act_type == 0, "an activation is available with per_token_scale only")
    if weight_dtype == torch.int8:
        require(_NAME, x_dtype != torch.float32, "int8 weight needs float16 or bfloat16 x")
        require(_NAME, scaling.antiquant_scale is not None, "int8 weight needs antiquant_scale")
    else:
        require(_NAME, weight_dtype == x_dtype, "x and weight must have the same dtype")
        require(_NAME, scaling.antiquant_scale is None, "antiquant_scale needs int8 weight")
    if scaling.bias is not None:
        expected = torch.float16 if x_dtype == torch.float16 else torch.float32
        require_dtype(_NAME, f"bias with {x_dtype} x", scaling.bias[0], (expected,))


def _activate(product: Tensor, act_type: int) -> Tensor:
    if act_type == 0:
        return product
    if act_type == 1:
        return functional.relu(product)
    if act_type == 2:
        return functional.gelu(product, approximate="tanh")
    if act_type == 5:
        return functional.silu(product)
    refuse(_NAME, f"act_type {act_type}")


def _multiply(x: Tensor, weight: Tensor, group: int, scaling: Scaling, rows: slice) -> Tensor:
    """One group's product in float32, with the formulas of the page (1, 2, 3 and 4)."""
    bias = None if scaling.bias is None else scaling.bias[group].float()
    if scaling.antiquant_scale is not None:
        offset = 0 if scaling.antiquant_offset is None else scaling.antiquant_offset[group].float()
        weight = (weight.float() + offset) * scaling.antiquant_scale[group].float()
    if scaling.scale is None:
        product = multiply_in_fp32(x, weight)
        return product if bias is None else product + bias

    assert scaling.scale is not None
    integers = torch.matmul(x.int(), weight.int())
    integer_bias = scaling.bias is not None and scaling.bias[group].dtype == torch.int32
    if integer_bias:
        assert scaling.bias is not None
        integers = integers + scaling.bias[group]
    product = integers.float() * scaling.scale[group].float()
    if scaling.per_token_scale is not None:
        product = product * scaling.per_token_scale[0][rows].float().unsqueeze(1)
    if bias is not None and not integer_bias:
        product = product + bias
    return _activate(product, scaling.act_type)


def split_per_group(tensors: list[Tensor] | None) -> list[Tensor] | None:
    """Split a single [e, ...] operand into its e rows; leave lists as they are."""
    if tensors is None or len(tensors) != 1 or tensors[0].dim() < 2:
        return tensors
    return list(tensors[0].unbind(0))


def _split_rows(
    x: list[Tensor], weight: list[Tensor], sizes: list[int] | None
) -> list[tuple[Tensor, slice]]:
    """The rows of each group, and where they stand in a per-token operand."""
    if len(x) > 1 or sizes is None:
        require(_NAME, len(x) == len(weight), "x and weight must have as many tensors")
        rows_of_x = [tensor.size(0) for tensor in x]
        fits = sizes is None or sizes == rows_of_x
        require(_NAME, fits, "group_list must repeat the rows of each tensor of x")
        starts = [sum(rows_of_x[:index]) for index in range(len(x))]
        return [
            (tensor, slice(start, start + tensor.size(0)))
            for tensor, start in zip(x, starts, strict=True)
        ]
    require(_NAME, len(sizes) == len(weight), "group_list must have one entry per weight")
    require(_NAME, sum(sizes) == x[0].size(0), "group_list must add up to the rows of x")
    bounds = [sum(sizes[:index]) for index in range(len(sizes) + 1)]
    spans = [slice(start, end) for start, end in pairwise(bounds)]
    return [(x[0][span], span) for span in spans]


def multiply_row_groups(
    x: list[Tensor],
    weight: list[Tensor],
    sizes: list[int] | None,
    scaling: Scaling,
    order: list[int] | None = None,
) -> list[Tensor]:
    """Products of row groups; group g uses `weight[order[g]]`, by default `weight[g]`."""
    parts = _split_rows(x, [weight[0]] * len(sizes) if order and sizes else weight, sizes)
    products = []
    for index, (rows, span) in enumerate(parts):
        group = index if order is None else order[index]
        matrix = weight[group]
        require(_NAME, rows.size(-1) == matrix.size(0), "x and weight disagree about k")
        products.append(_multiply(rows, matrix, group, scaling, span))
    return products


def multiply_column_groups(x: Tensor, weight: Tensor, sizes: list[int]) -> Tensor:
    """[k, t] and [t, n] cut along t into [e, k, n]; an empty group gives zeros."""
    require(_NAME, x.dim() == 2 and weight.dim() == 2, "group_type 2 needs 2-D x and weight")
    require(_NAME, x.size(1) == weight.size(0), "x and weight disagree about the grouped axis")
    require(_NAME, sum(sizes) == x.size(1), "group_list must add up to the grouped axis of x")
    products = [
        multiply_in_fp32(left, right)
        for left, right in zip(torch.split(x, sizes, 1), torch.split(weight, sizes), strict=True)
    ]
    return torch.stack(products)


def check_scenario(
    x: list[Tensor], weight: list[Tensor], split_item: int, group_type: int, grouped: bool
) -> None:
    if group_type == -1:
        require(_NAME, split_item in (0, 1), "group_type -1 needs split_item 0 or 1")
        require(_NAME, not grouped, "group_type -1 takes no group_list")
        require(_NAME, len(x) == len(weight), "group_type -1 needs as many x as weight")
        require(_NAME, all(2 <= tensor.dim() <= 6 for tensor in x), "x must be 2-D to 6-D")
        return
    require(_NAME, split_item in (2, 3), f"group_type {group_type} needs split_item 2 or 3")
    require(_NAME, all(tensor.dim() == 2 for tensor in x), "x must be 2-D")
    if len(x) == 1:
        require(_NAME, grouped, "a single x needs group_list")
    if group_type == 0:
        require(_NAME, not any(map(_is_transposed_wide, x)), "x must not be transposed")
    else:
        require(_NAME, len(x) == len(weight) == 1, "group_type 2 needs a single x and weight")


def _is_transposed_wide(tensor: Tensor) -> bool:
    return min(tensor.shape) > 1 and _is_transposed(tensor)
