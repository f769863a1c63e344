"""MX quantisation against loops over blocks, with exponents searched for and not computed."""

import math

import pytest
import torch
from torch import Tensor

from ascend_sim.kernels.mx_quant import dynamic_mx_quant, dynamic_mx_quant_with_dual_axis

ELEMENTS = [(291, torch.float8_e5m2, 57344.0, 15), (292, torch.float8_e4m3fn, 448.0, 8)]


def all_values(element: torch.dtype) -> list[float]:
    """Every finite value of an fp8 type, in order of its bits (so that even bits break ties)."""
    bits = torch.arange(256, dtype=torch.uint8)
    return [float(value) for value in bits.view(element)]


def nearest(value: float, table: list[float], limit: float) -> float:
    value = max(-limit, min(limit, value))
    candidates = [(abs(v - value), bits % 2, v) for bits, v in enumerate(table) if math.isfinite(v)]
    return min(candidates)[2]


def exponent_by_search(amax: float, limit: float, emax: int, scale_alg: int) -> int:
    for exponent in range(-127, 128):
        if scale_alg == 0 and 2.0 ** (exponent + emax + 1) > amax:
            return exponent
        if scale_alg == 1 and limit * 2.0**exponent >= amax:
            return exponent
    raise AssertionError(amax)


@pytest.mark.parametrize(("number", "element", "limit", "emax"), ELEMENTS)
@pytest.mark.parametrize("scale_alg", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("length", [32, 70, 128])
def test_each_block_shares_one_power_of_two(
    number: int,
    element: torch.dtype,
    limit: float,
    emax: int,
    scale_alg: int,
    dtype: torch.dtype,
    length: int,
) -> None:
    torch.manual_seed(0)
    x = (torch.randn(2, length) * torch.tensor([[0.01], [300.0]])).to(dtype)
    y, scales = dynamic_mx_quant(x, dst_type=number, scale_alg=scale_alg)
    blocks = -(-length // 32)
    assert y.dtype == element
    assert scales.shape == (2, -(-blocks // 2), 2)
    table = all_values(element)
    for row in range(2):
        found = scales[row].flatten().tolist()
        assert found[blocks:] == [0] * (len(found) - blocks)
        for block in range(blocks):
            part = x[row, 32 * block : 32 * block + 32].double().tolist()
            got = y[row, 32 * block : 32 * block + 32].float().tolist()
            exponent = exponent_by_search(max(map(abs, part)), limit, emax, scale_alg)
            assert found[block] - 127 == exponent
            assert got == [nearest(v / 2.0**exponent, table, limit) for v in part]


def test_the_page_example() -> None:
    x = torch.tensor([[0, 8, 64, 512]], dtype=torch.bfloat16)
    y, scales, _, _ = dynamic_mx_quant_with_dual_axis(x, dst_type=24)
    assert y.float().tolist() == [[0, 4, 32, 256]]
    assert scales.tolist() == [[[128, 0]]]


@pytest.mark.parametrize("axis", [0, 1, -1, -2])
@pytest.mark.parametrize("block_size", [32, 64])
def test_any_axis_is_the_last_axis_of_the_transposed_input(axis: int, block_size: int) -> None:
    torch.manual_seed(1)
    x = torch.randn(3, 100, 70).bfloat16()
    y, scales = dynamic_mx_quant(x, axis=axis, dst_type=292, block_size=block_size)
    moved_y, moved_scales = dynamic_mx_quant(
        x.movedim(axis, -1).contiguous(), dst_type=292, block_size=block_size
    )
    assert torch.equal(y.movedim(axis, -1).float(), moved_y.float())
    # The pair of blocks stays the last dimension; the pairs stand where the axis stood.
    assert torch.equal(scales.movedim(axis % 3, -2), moved_scales)


def test_dual_axis_does_both() -> None:
    x = torch.randn(2, 40, 66).half()
    rows, row_scales, columns, column_scales = dynamic_mx_quant_with_dual_axis(x, dst_type=23)
    expected: list[tuple[Tensor, Tensor]] = [
        dynamic_mx_quant(x, dst_type=23),
        dynamic_mx_quant(x, axis=-2, dst_type=23),
    ]
    for (y, scales), found, found_scales in zip(
        expected, (rows, columns), (row_scales, column_scales), strict=True
    ):
        assert torch.equal(y.float(), found.float())
        assert torch.equal(scales, found_scales)
    assert column_scales.shape == (2, 1, 66, 2)


def test_zero_infinite_and_bounded_blocks() -> None:
    x = torch.zeros(1, 96).bfloat16()
    x[0, 40] = torch.inf
    x[0, 70] = 1.0
    y, scales = dynamic_mx_quant(x, dst_type=292)
    assert scales.flatten().tolist() == [0, 255, 127 - 8, 0]
    assert y[0, :32].float().tolist() == [0.0] * 32
    assert y[0, 32:64].float().isnan().all()
    assert float(y[0, 70].float()) == 256.0
    _, bounded = dynamic_mx_quant(x[:, 64:], dst_type=292, scale_alg=1, max_low_bound=448.0)
    assert bounded.flatten().tolist() == [127, 0]


X = torch.randn(2, 64).half()


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ({"axis": 2}, "outside the dimensions"),
        ({"block_size": 48}, "multiple of 32"),
        ({"block_size": 2048}, "multiple of 32"),
        ({"round_mode": "floor"}, "round_mode must be"),
        ({"scale_alg": 2}, "scale_alg must be 0 or 1"),
        ({"dst_type_max": 6.0}, "dst_type_max must be 0"),
        ({"max_low_bound": 1.0}, "needs scale_alg 1"),
        ({"input": X.float(), "block_size": 64}, "must be 32 with float32"),
        ({"input": X.float(), "axis": 0}, "at least 32"),
        ({"input": X.double()}, "input must be float16"),
    ],
)
def test_a_broken_rule_is_named(arguments: dict[str, object], rule: str) -> None:
    with pytest.raises(RuntimeError, match=rule):
        dynamic_mx_quant(**({"input": X, "dst_type": 292} | arguments))  # type: ignore[arg-type]


def test_fp4_is_refused() -> None:
    for call in (dynamic_mx_quant, dynamic_mx_quant_with_dual_axis):
        with pytest.raises(NotImplementedError, match="dst_type 296"):
            call(X)
