"""Quantisation against loops over rows and elements in float64."""

import pytest
import torch
from torch import Tensor

from ascend_sim.kernels import quant

HALVES = [torch.float16, torch.bfloat16]


def nearest(value: float) -> int:
    return max(-128, min(127, round(value)))


def rows_of(x: Tensor, smooth: Tensor | None, ends: list[int] | None) -> list[list[float]]:
    rows = x.double().reshape(-1, x.size(-1)).tolist()
    if smooth is None:
        return rows
    out = []
    for number, row in enumerate(rows):
        if ends is None:
            factors = smooth.double().tolist()
        else:
            group = next(g for g, end in enumerate(ends) if number < end)
            factors = smooth[group].double().tolist()
        out.append([value * factor for value, factor in zip(row, factors, strict=True)])
    return out


CASES = [(None, None), ((6,), None), ((3, 6), [1, 1, 4])]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("smooth_shape", "ends"), CASES)
@pytest.mark.parametrize("shape", [(4, 6), (2, 2, 6)])
def test_dynamic_quant_scales_each_row_by_its_greatest_value(
    dtype: torch.dtype,
    smooth_shape: tuple[int, ...] | None,
    ends: list[int] | None,
    shape: tuple[int, ...],
) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape).to(dtype)
    smooth = None if smooth_shape is None else torch.rand(smooth_shape).add(0.5).to(dtype)
    index = None if ends is None else torch.tensor(ends, dtype=torch.int32)
    y, scale = quant.dynamic_quant(x, smooth_scales=smooth, group_index=index)
    assert y.dtype == torch.int8
    assert y.shape == x.shape
    assert scale.shape == x.shape[:-1]
    assert scale.dtype == torch.float32
    rows = rows_of(x, smooth, ends)
    for row, got, factor in zip(rows, y.reshape(4, 6).tolist(), scale.flatten(), strict=True):
        greatest = max(abs(value) for value in row)
        assert float(factor) == pytest.approx(greatest / 127, rel=1e-6)
        # A value within 1e-4 of a tie may round either way in float32.
        for value, rounded in zip(row, got, strict=True):
            assert abs(value / (greatest / 127) - rounded) <= 0.5 + 1e-4


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("smooth_shape", "ends"), CASES)
def test_asymmetric_quant_uses_the_whole_range(
    dtype: torch.dtype, smooth_shape: tuple[int, ...] | None, ends: list[int] | None
) -> None:
    torch.manual_seed(1)
    x = (torch.randn(4, 6) + 3).to(dtype)
    smooth = None if smooth_shape is None else torch.rand(smooth_shape).add(0.5).to(dtype)
    index = None if ends is None else torch.tensor(ends, dtype=torch.int32)
    y, scale, offset = quant.dynamic_quant_asymmetric(x, smooth_scales=smooth, group_index=index)
    for row, got, s, o in zip(
        rows_of(x, smooth, ends), y.tolist(), scale.tolist(), offset.tolist(), strict=True
    ):
        step = (max(row) - min(row)) / 255
        assert s == pytest.approx(step, rel=1e-5)
        assert o == pytest.approx(127 - max(row) / step, rel=1e-4, abs=1e-3)
        assert max(got) == 127
        assert min(got) == -128
        for value, rounded in zip(row, got, strict=True):
            assert abs(value / step + 127 - max(row) / step - rounded) <= 0.5 + 1e-2


def test_a_row_of_zeros_stays_zero() -> None:
    y, scale = quant.dynamic_quant(torch.tensor([[0.0, 0.0], [1.0, -2.0]]).half())
    assert y.tolist() == [[0, 0], [64, -127]]
    assert float(scale[0]) == 0.0
    with pytest.raises(NotImplementedError, match="equal values"):
        quant.dynamic_quant_asymmetric(torch.ones(2, 3).half())


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32])
@pytest.mark.parametrize(
    ("type_id", "low", "high"), [(12, -128, 127), (13, 0, 255), (3, -9e9, 9e9)]
)
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("with_zero", [False, True])
def test_quantize_divides_along_the_axis(
    dtype: torch.dtype, type_id: int, low: float, high: float, axis: int, with_zero: bool
) -> None:
    torch.manual_seed(2)
    x = (torch.randn(3, 4) * 100).to(dtype)
    size = x.size(axis)
    scales = torch.rand(size) + 0.25
    zero = torch.arange(size, dtype=torch.int32) if with_zero else None
    out = quant.quantize(x, scales, zero, type_id, axis, True)
    for i in range(3):
        for j in range(4):
            k = i if axis == 0 else j
            wanted = float(x[i, j]) / float(scales[k]) + (k if with_zero else 0)
            clamped = max(low, min(high, wanted))
            assert abs(float(out[i, j]) - clamped) <= 0.5 + 1e-3
    assert out.dtype == {12: torch.int8, 13: torch.uint8, 3: torch.int32}[type_id]


@pytest.mark.parametrize("axis", [-2, 1])
def test_quantize_multiplies_along_one_of_the_last_axes(axis: int) -> None:
    x = torch.tensor([[1.0, 2.0, -3.0], [4.0, -5.0, 100.0]])
    scales = torch.tensor([2.0, 3.0]) if axis == -2 else torch.tensor([1.0, 2.0, 3.0])
    out = quant.quantize(x, scales, None, 12, axis, False)
    expected = [[2, 4, -6], [12, -15, 127]] if axis == -2 else [[1, 4, -9], [4, -10, 127]]
    assert out.tolist() == expected


def test_rounding_is_to_the_nearest_even() -> None:
    x = torch.tensor([[0.5, 1.5, 2.5, -0.5, -1.5, -2.5]])
    out = quant.quantize(x, torch.ones(1), None, 12, 1, True)
    assert out.tolist() == [[0, 2, 2, 0, -2, -2]]


@pytest.mark.parametrize("scale_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("type_id", "dtype"), [(None, torch.float16), (15, torch.bfloat16)])
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("with_offset", [False, True])
def test_anti_quant_adds_the_offset_first(
    scale_dtype: torch.dtype,
    type_id: int | None,
    dtype: torch.dtype,
    size: int,
    with_offset: bool,
) -> None:
    x = torch.tensor([[-128, 0, 127], [5, 6, 7]], dtype=torch.int8)
    scale = torch.tensor([0.5, 0.25, 2.0][:size]).to(scale_dtype)
    offset = torch.tensor([1.0, -2.0, 3.0][:size]).to(scale_dtype)
    out = quant.anti_quant(x, scale, offset=offset if with_offset else None, dst_dtype=type_id)
    assert out.dtype == dtype
    shift = offset.double() if with_offset else torch.zeros(size).double()
    expected = (x.double() + shift) * scale.double()
    torch.testing.assert_close(out.double(), expected, rtol=1e-2, atol=1e-3)


X = torch.randn(2, 4).half()


@pytest.mark.parametrize(
    ("call", "rule"),
    [
        (lambda: quant.dynamic_quant(X[0]), "more than one dimension"),
        (lambda: quant.dynamic_quant(X.float()), "must be float16, bfloat16"),
        (lambda: quant.dynamic_quant(X, smooth_scales=torch.ones(4)), "dtype of the input"),
        (lambda: quant.dynamic_quant(X, smooth_scales=X[:, :3][0]), "last size"),
        (lambda: quant.dynamic_quant(X, smooth_scales=X), "must be 1-D without group_index"),
        (lambda: quant.dynamic_quant(X, group_index=torch.tensor([2]).int()), "needs smooth"),
        (
            lambda: quant.dynamic_quant(X, smooth_scales=X, group_index=torch.tensor([1, 3]).int()),
            "end at the number of rows",
        ),
        (lambda: quant.quantize(X, torch.ones(4), None, 6), "dtype must be"),
        (lambda: quant.quantize(X, torch.ones(3), None, 12), "1 value or one per element"),
        (lambda: quant.quantize(X, torch.ones(4), None, 3, 1, False), "needs qint8"),
        (lambda: quant.anti_quant(X, torch.ones(1)), "x must be int8"),
        (lambda: quant.anti_quant(X.char(), torch.ones(2)), r"scale must be \[1\] or \[n\]"),
        (lambda: quant.anti_quant(X.char(), torch.ones(1), dst_dtype=6), "dst_dtype must be"),
    ],
)
def test_a_broken_rule_is_named(call, rule: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(RuntimeError, match=rule):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda: quant.dynamic_quant(X, dst_type=16),
        lambda: quant.dynamic_quant(X, quant_mode="pertensor"),
        lambda: quant.quantize(X, torch.ones(4), None, 16),
        lambda: quant.anti_quant(X.int(), torch.ones(1)),
    ],
)
def test_packed_and_other_modes_are_refused(call) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(NotImplementedError, match="is not simulated"):
        call()
