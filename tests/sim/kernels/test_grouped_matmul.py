"""Grouped products against one float64 product per group, in every scenario of the page."""

import pytest
import torch
from torch import Tensor

from ascend_sim.kernels.grouped_matmul import grouped_matmul, grouped_matmul_list
from ascend_sim.kernels.grouped_matmul_add import grouped_matmul_add, grouped_matmul_add_

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
SIZES = [[3, 0, 4, 1], [0, 0, 5, 0], [2, 2, 2, 2], [0, 0, 0, 0]]


def close(actual: Tensor, expected: Tensor) -> None:
    bound = TOLERANCE[actual.dtype]
    torch.testing.assert_close(actual.double(), expected, rtol=bound, atol=bound)


def as_group_list(sizes: list[int], group_list_type: int) -> Tensor:
    counts = torch.tensor(sizes)
    return counts.cumsum(0) if group_list_type == 0 else counts


def products(x: Tensor, weights: Tensor, sizes: list[int]) -> list[Tensor]:
    out, start = [], 0
    for size, weight in zip(sizes, weights, strict=True):
        out.append(x[start : start + size].double() @ weight.double())
        start += size
    return out


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("group_list_type", [0, 1])
@pytest.mark.parametrize("form", ["one weight", "list of weights", "transposed", "lists of both"])
@pytest.mark.parametrize("with_bias", [False, True])
def test_rows_of_x_are_multiplied_with_the_weight_of_their_group(
    dtype: torch.dtype, sizes: list[int], group_list_type: int, form: str, with_bias: bool
) -> None:
    torch.manual_seed(0)
    x, weights = torch.randn(sum(sizes), 5).to(dtype), torch.randn(4, 5, 3).to(dtype)
    bias_dtype = torch.float16 if dtype == torch.float16 else torch.float32
    bias = torch.randn(4, 3).to(bias_dtype)
    expected = products(x, weights, sizes)
    if with_bias:
        expected = [part + row.double() for part, row in zip(expected, bias, strict=True)]
    x_list, weight_list = [x], [weights]
    if form == "list of weights":
        weight_list = list(weights)
    elif form == "transposed":
        weight_list = [weights.transpose(1, 2).contiguous().transpose(1, 2)]
    elif form == "lists of both":
        x_list, weight_list = list(torch.split(x, sizes)), list(weights)
    bias_list = list(bias) if len(weight_list) > 1 else [bias]
    out = grouped_matmul(
        x_list,
        weight_list,
        bias=bias_list if with_bias else None,
        group_list=as_group_list(sizes, group_list_type),
        split_item=3,
        group_type=0,
        group_list_type=group_list_type,
    )
    assert len(out) == 1
    assert out[0].dtype == dtype
    close(out[0], torch.cat(expected))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("group_list_type", [0, 1])
def test_group_type_2_gives_the_weight_gradient_of_each_group(
    dtype: torch.dtype, sizes: list[int], group_list_type: int
) -> None:
    torch.manual_seed(1)
    x, dy = torch.randn(sum(sizes), 5).to(dtype), torch.randn(sum(sizes), 3).to(dtype)
    out = grouped_matmul(
        [x.t()],
        [dy],
        group_list=as_group_list(sizes, group_list_type),
        split_item=3,
        group_type=2,
        group_list_type=group_list_type,
    )
    expected = torch.zeros(4, 5, 3, dtype=torch.float64)
    row = 0
    for group, size in enumerate(sizes):
        for _ in range(size):
            expected[group] += torch.outer(x[row].double(), dy[row].double())
            row += 1
    assert out[0].shape == (4, 5, 3)
    close(out[0], expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_grouping_gives_one_output_for_each_pair(dtype: torch.dtype) -> None:
    xs = [torch.randn(2, 3, 4).to(dtype), torch.randn(5, 1, 6).to(dtype)]
    weights = [torch.randn(4, 2).to(dtype), torch.randn(6, 7).to(dtype)]
    for split_item in (0, 1):
        out = grouped_matmul(xs, weights, group_type=-1, split_item=split_item)
        for actual, x, weight in zip(out, xs, weights, strict=True):
            close(actual, x.double() @ weight.double())
        for actual, same in zip(grouped_matmul_list(xs, weights, split_item=0), out, strict=True):
            assert torch.equal(actual, same)


@pytest.mark.parametrize("sizes", [[3, 0, 4, 1], [2, 2, 2, 2]])
@pytest.mark.parametrize("split_item", [0, 1, 2, 3])
def test_the_list_form_splits_one_x_for_many_weights(sizes: list[int], split_item: int) -> None:
    x, weights = torch.randn(8, 5), torch.randn(4, 5, 3)
    ends = torch.tensor(sizes).cumsum(0).tolist()
    out = grouped_matmul_list([x], list(weights), group_list=ends, split_item=split_item)
    expected = products(x, weights, sizes)
    if split_item > 1:
        expected = [torch.cat(expected)]
    assert len(out) == len(expected)
    for actual, part in zip(out, expected, strict=True):
        close(actual, part)


@pytest.mark.parametrize(
    ("scale_dtype", "output"), [(torch.float32, torch.float16), (torch.bfloat16, torch.bfloat16)]
)
@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("bias_dtype", [None, torch.int32, torch.float32])
@pytest.mark.parametrize("group_list_type", [0, 1, 2])
def test_int8_products_are_exact_before_they_are_scaled(
    scale_dtype: torch.dtype,
    output: torch.dtype,
    per_token: bool,
    bias_dtype: torch.dtype | None,
    group_list_type: int,
) -> None:
    torch.manual_seed(2)
    sizes = [3, 0, 4, 1]
    x = torch.randint(-128, 128, (8, 600)).to(torch.int8)
    weights = torch.randint(-128, 128, (4, 600, 3)).to(torch.int8)
    scale, token_scale = torch.rand(4, 3).to(scale_dtype) * 1e-4, torch.rand(8)
    bias = None if bias_dtype is None else torch.randint(-99, 99, (4, 3)).to(bias_dtype)
    order = [2, 1, 0, 3] if group_list_type == 2 else [0, 1, 2, 3]
    expected, start = [], 0
    for size, group in zip(sizes, order, strict=True):
        rows = slice(start, start + size)
        part = x[rows].double() @ weights[group].double()
        if bias is not None and bias_dtype == torch.int32:
            part = part + bias[group].double()
        part = part * scale[group].double()
        if per_token:
            part = part * token_scale[rows].double().unsqueeze(1)
        if bias is not None and bias_dtype != torch.int32:
            part = part + bias[group].double()
        expected.append(part)
        start += size
    group_list = as_group_list(sizes, group_list_type)
    if group_list_type == 2:
        group_list = torch.stack([torch.tensor(order), group_list], 1)
    out = grouped_matmul(
        [x],
        [weights],
        bias=None if bias is None else [bias],
        scale=[scale],
        per_token_scale=[token_scale] if per_token else None,
        group_list=group_list,
        group_list_type=group_list_type,
        split_item=3,
        group_type=0,
        output_dtype={torch.float16: 5, torch.bfloat16: 15}[output],
    )
    assert out[0].dtype == output
    close(out[0], torch.cat(expected))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("with_offset", [False, True])
def test_int8_weights_are_dequantised_by_column(dtype: torch.dtype, with_offset: bool) -> None:
    x = torch.randn(5, 4).to(dtype)
    weights = torch.randint(-9, 9, (2, 4, 3)).to(torch.int8)
    scale, offset = torch.rand(2, 3).to(dtype), torch.randn(2, 3).to(dtype)
    out = grouped_matmul(
        [x],
        [weights],
        antiquant_scale=[scale],
        antiquant_offset=[offset] if with_offset else None,
        group_list=torch.tensor([2, 5]),
        split_item=2,
        group_type=0,
    )
    shift = offset.double() if with_offset else torch.zeros(2, 3).double()
    restored = (weights.double() + shift.unsqueeze(1)) * scale.double().unsqueeze(1)
    close(out[0], torch.cat([x[:2].double() @ restored[0], x[2:].double() @ restored[1]]))


@pytest.mark.parametrize(("act_type", "name"), [(1, "relu"), (2, "gelu"), (5, "silu")])
def test_activation_follows_the_per_token_scale(act_type: int, name: str) -> None:
    x = torch.randint(-5, 5, (4, 3)).to(torch.int8)
    weights = torch.randint(-5, 5, (2, 3, 2)).to(torch.int8)
    out = grouped_matmul(
        [x],
        [weights],
        scale=[torch.full((2, 2), 0.1)],
        per_token_scale=[torch.ones(4)],
        group_list=torch.tensor([1, 4]),
        split_item=3,
        group_type=0,
        act_type=act_type,
        output_dtype=5,
    )
    raw = 0.1 * torch.cat(products(x, weights, [1, 3]))
    root = (2 / torch.pi) ** 0.5
    expected = {
        "relu": raw.clamp(min=0),
        "gelu": 0.5 * raw * (1 + torch.tanh(root * (raw + 0.044715 * raw**3))),
        "silu": raw / (1 + torch.exp(-raw)),
    }[name]
    close(out[0], expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("sizes", [[3, 0, 4, 1], [0, 0, 5, 0], [1, 1, 1, 1]])
def test_add_accumulates_each_group_into_its_gradient(dtype: torch.dtype, sizes: list[int]) -> None:
    x, dy = torch.randn(8, 5).to(dtype), torch.randn(8, 3).to(dtype)
    start = torch.randn(4, 5, 3)
    expected, row = start.double(), 0
    for group, size in enumerate(sizes):
        for _ in range(size):
            expected[group] += torch.outer(x[row].double(), dy[row].double())
            row += 1
    ends = torch.tensor(sizes).cumsum(0)
    buffer = start.clone()
    assert grouped_matmul_add_(buffer, x, dy, ends) is buffer
    close(buffer, expected)
    # The other form writes its input too (and returns a copy).
    other = start.clone()
    copy = grouped_matmul_add(other, x, dy, ends)
    assert torch.equal(other, buffer)
    assert torch.equal(copy, buffer)
    assert copy.data_ptr() != other.data_ptr()


X, W, ENDS = torch.randn(4, 3), torch.randn(2, 3, 5), torch.tensor([1, 4])


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ({"group_type": None}, "group_type must be -1, 0 or 2"),
        ({"group_type": 1}, "group_type must be -1, 0 or 2"),
        ({"split_item": 0}, "needs split_item 2 or 3"),
        ({"group_list": None}, "needs group_list"),
        ({"group_list": torch.tensor([1, 3])}, "add up"),
        ({"group_list": torch.tensor([3, 2])}, "non-decreasing"),
        ({"group_list": torch.tensor([1, 4]).int()}, "group_list must be int64"),
        ({"group_list": torch.tensor([1, 2, 4])}, "one entry per weight"),
        ({"group_list": torch.tensor([[0, 4]]), "group_list_type": 2}, "needs int8"),
        ({"weight": [W.half()]}, "same dtype"),
        ({"weight": [torch.randn(2, 4, 5)]}, "disagree about k"),
        ({"bias": [torch.randn(2, 5).half()]}, "bias with"),
        ({"x": [torch.randn(3, 4).t()]}, "x must not be transposed"),
        ({"offset": [torch.ones(1)]}, "offset must be None"),
        ({"act_type": 1}, "per_token_scale only"),
        ({"scale": [torch.ones(2, 5)]}, "scale needs int8 x"),
        ({"x": [torch.randn(4, 65536)], "weight": [torch.randn(2, 1, 1)]}, "below 65536"),
        ({"x": [X.double()], "weight": [W.double()]}, "x must be float16"),
    ],
)
def test_a_broken_rule_is_named(arguments: dict[str, object], rule: str) -> None:
    call: dict[str, object] = {
        "x": [X],
        "weight": [W],
        "group_list": ENDS,
        "split_item": 3,
        "group_type": 0,
    }
    with pytest.raises(RuntimeError, match=rule):
        grouped_matmul(**(call | arguments))  # type: ignore[arg-type]


def test_modes_without_a_reference_are_refused() -> None:
    with pytest.raises(NotImplementedError, match=r"int8 x with torch\.int32 weight"):
        grouped_matmul(
            [X.to(torch.int8)],
            [W.to(torch.int32)],
            scale=[torch.ones(2, 5)],
            group_list=ENDS,
            split_item=3,
            group_type=0,
        )
    with pytest.raises(NotImplementedError, match="dtype id 296"):
        grouped_matmul([X], [W], group_list=ENDS, split_item=3, group_type=0, x_dtype=296)


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ({"group_type": 0}, "group_type must be 2"),
        ({"transpose_x": False}, "only x is transposed"),
        ({"group_list_type": 1}, "group_list_type must be 0"),
        ({"input": torch.zeros(2, 3, 5).half()}, "input must be float32"),
        ({"input": torch.zeros(2, 5, 3)}, r"input must be \[2, 3, 5\]"),
        ({"x": X}, "x must be float16"),
        ({"group_list": torch.tensor([1, 5])}, "beyond the rows"),
    ],
)
def test_add_names_a_broken_rule(arguments: dict[str, object], rule: str) -> None:
    call: dict[str, object] = {
        "input": torch.zeros(2, 3, 5),
        "x": X.half(),
        "weight": torch.randn(4, 5).half(),
        "group_list": ENDS,
    }
    with pytest.raises(RuntimeError, match=rule):
        grouped_matmul_add_(**(call | arguments))  # type: ignore[arg-type]
