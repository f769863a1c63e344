"""MX products against loops over blocks in float64, and against the matrices before quantising."""

import pytest
import torch
from torch import Tensor

from ascend_sim.kernels.mx_matmul import add_quant_matmul, add_quant_matmul_
from ascend_sim.kernels.mx_quant import dynamic_mx_quant
from ascend_sim.kernels.quant_matmul import quant_matmul

E8M0 = 293
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}


def fp8(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape).mul(4).to(dtype)


def scales(*shape: int) -> Tensor:
    return torch.randint(120, 129, shape, dtype=torch.uint8)


def power(byte: Tensor) -> float:
    return 0.0 if int(byte) == 0 else 2.0 ** (int(byte) - 127)


def by_blocks(x1: Tensor, x2: Tensor, s1: Tensor, s2: Tensor) -> Tensor:
    """[m, k] and [k, n] with [m, c, 2] and [c, n, 2]."""
    out = torch.zeros(x1.size(0), x2.size(1), dtype=torch.float64)
    for m in range(x1.size(0)):
        for n in range(x2.size(1)):
            for block in range(-(-x1.size(1) // 32)):
                part = slice(32 * block, 32 * block + 32)
                dot = float(x1[m, part].double() @ x2[part, n].double())
                factor = power(s1[m, block // 2, block % 2]) * power(s2[block // 2, n, block % 2])
                out[m, n] += dot * factor
    return out


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize(("type_id", "output"), [(5, torch.float16), (15, torch.bfloat16)])
@pytest.mark.parametrize("depth", [32, 100, 128])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
def test_quant_matmul_with_mx_scales(
    dtype: torch.dtype,
    type_id: int,
    output: torch.dtype,
    depth: int,
    with_bias: bool,
    transposed: bool,
) -> None:
    torch.manual_seed(0)
    pairs = -(-depth // 64)
    x1, x2 = fp8(3, depth, dtype=dtype), fp8(depth, 2, dtype=dtype)
    s1, s2 = scales(3, pairs, 2), scales(pairs, 2, 2)
    s1[0, 0, 0] = 0
    bias = torch.randn(2)
    expected = by_blocks(x1, x2, s1, s2) + (bias.double() if with_bias else 0)
    if transposed:
        x2, s2 = x2.t().contiguous().t(), s2.transpose(0, 1).contiguous().transpose(0, 1)
    out = quant_matmul(
        x1,
        x2,
        s2,
        pertoken_scale=s1,
        bias=bias if with_bias else None,
        output_dtype=type_id,
        scale_dtype=E8M0,
        pertoken_scale_dtype=E8M0,
        group_sizes=[1, 1, 32],
    )
    assert out.dtype == output
    bound = TOLERANCE[output]
    limit = bound * float(expected.abs().max())
    torch.testing.assert_close(out.double(), expected, rtol=bound, atol=limit)


def test_batches_have_scales_of_their_own() -> None:
    x1, x2 = fp8(2, 3, 64, dtype=torch.float8_e5m2), fp8(2, 64, 4, dtype=torch.float8_e4m3fn)
    s1, s2 = scales(2, 3, 1, 2), scales(2, 1, 4, 2)
    out = quant_matmul(
        x1,
        x2,
        s2,
        pertoken_scale=s1,
        output_dtype=6,
        scale_dtype=E8M0,
        pertoken_scale_dtype=E8M0,
    )
    expected = torch.stack([by_blocks(x1[b], x2[b], s1[b], s2[b]) for b in range(2)])
    limit = 1e-5 * float(expected.abs().max())
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=limit)


@pytest.mark.parametrize("depth", [40, 128])
def test_add_quant_matmul_accumulates_a_weight_gradient(depth: int) -> None:
    torch.manual_seed(1)
    pairs = -(-depth // 64)
    x1, x2 = fp8(depth, 3, dtype=torch.float8_e4m3fn), fp8(depth, 2, dtype=torch.float8_e5m2)
    s1, s2 = scales(pairs, 3, 2), scales(pairs, 2, 2)
    start = torch.randn(3, 2)
    expected = start.double() + by_blocks(x1.t(), x2, s1.transpose(0, 1), s2)
    options = {"x1_scale": s1, "x1_scale_dtype": E8M0, "x2_scale_dtype": E8M0}
    total = start.clone()
    copy = add_quant_matmul(total, x1, x2, s2, **options)  # type: ignore[arg-type]
    assert torch.equal(total, start)
    assert add_quant_matmul_(total, x1, x2, s2, **options) is total  # type: ignore[arg-type]
    assert torch.equal(total, copy)
    limit = 1e-5 * float(expected.abs().max())
    torch.testing.assert_close(total.double(), expected, rtol=1e-5, atol=limit)


def test_quantising_and_multiplying_comes_near_the_exact_product() -> None:
    torch.manual_seed(2)
    x, weight = torch.randn(4, 128).bfloat16(), torch.randn(128, 5).bfloat16()
    x8, x_scale = dynamic_mx_quant(x, axis=-1, dst_type=292)
    w8, w_scale = dynamic_mx_quant(weight, axis=-2, dst_type=292)
    out = quant_matmul(
        x8,
        w8,
        w_scale,
        pertoken_scale=x_scale,
        output_dtype=6,
        scale_dtype=E8M0,
        pertoken_scale_dtype=E8M0,
    )
    exact = x.double() @ weight.double()
    # e4m3 keeps 3 bits: about 2^-4 an element, less by sqrt(128) terms that average out.
    assert float((out.double() - exact).norm() / exact.norm()) < 0.05


X, W = fp8(2, 64, dtype=torch.float8_e4m3fn), fp8(64, 3, dtype=torch.float8_e4m3fn)
MX = {"output_dtype": 5, "scale_dtype": E8M0, "pertoken_scale_dtype": E8M0}


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ({"pertoken_scale": None}, "need the scale of x1"),
        ({"pertoken_scale": scales(2, 2, 2)}, r"scale of x1 must end in \[2, 1, 2\]"),
        ({"scale": scales(3, 1, 2)}, r"scale of x2 must end in \[1, 3, 2\]"),
        ({"scale": torch.ones(1, 3, 2)}, "8 bits wide"),
        ({"output_dtype": None}, "output_dtype must be float16"),
        ({"group_sizes": [1, 1, 64]}, "group_sizes must be"),
        ({"bias": torch.ones(3).half()}, "bias with mx"),
        ({"x2": W[:32]}, "agree about k"),
    ],
)
def test_a_broken_rule_is_named(arguments: dict[str, object], rule: str) -> None:
    call = {"x1": X, "x2": W, "scale": scales(1, 3, 2), "pertoken_scale": scales(2, 1, 2)}
    with pytest.raises(RuntimeError, match=rule):
        quant_matmul(**(call | MX | arguments))  # type: ignore[arg-type]


def test_other_operands_are_refused() -> None:
    with pytest.raises(NotImplementedError, match="with mx scales"):
        quant_matmul(
            X.float(),
            W,
            scales(1, 3, 2),
            pertoken_scale=scales(2, 1, 2),
            scale_dtype=E8M0,
            pertoken_scale_dtype=E8M0,
        )
    with pytest.raises(NotImplementedError, match="scales other than e8m0"):
        add_quant_matmul_(torch.zeros(2, 3), X.t(), W, torch.ones(1), x1_scale=torch.ones(1))
    with pytest.raises(NotImplementedError, match="hifloat8"):
        add_quant_matmul_(torch.zeros(2, 3), X.t(), W, torch.ones(1), x1_dtype=290)
