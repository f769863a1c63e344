"""Products of int8 matrices against float64."""

import pytest
import torch
from torch import Tensor

from ascend_sim.kernels.quant_matmul import quant_matmul, weight_quant_batchmatmul

HALVES = [torch.float16, torch.bfloat16]
TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def close(actual: Tensor, expected: Tensor) -> None:
    bound = TOLERANCE[actual.dtype]
    torch.testing.assert_close(actual.double(), expected, rtol=bound, atol=bound)


def int8(*shape: int) -> Tensor:
    return torch.randint(-128, 128, shape).to(torch.int8)


@pytest.mark.parametrize(("type_id", "dtype"), [(5, torch.float16), (15, torch.bfloat16)])
@pytest.mark.parametrize("scale_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("bias_dtype", [None, torch.int32, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_quant_matmul_scales_the_exact_product(
    type_id: int,
    dtype: torch.dtype,
    scale_dtype: torch.dtype,
    size: int,
    per_token: bool,
    bias_dtype: torch.dtype | None,
    batch: tuple[int, ...],
) -> None:
    torch.manual_seed(0)
    x1, x2 = int8(*batch, 4, 300), int8(*batch, 300, 3)
    scale = torch.rand(size).mul(1e-4).to(scale_dtype)
    tokens = torch.rand(4) if per_token else None
    bias = None if bias_dtype is None else torch.randint(-9, 9, (3,)).to(bias_dtype)
    out = quant_matmul(x1, x2, scale, pertoken_scale=tokens, bias=bias, output_dtype=type_id)
    assert out.dtype == dtype
    expected = x1.double() @ x2.double()
    if bias is not None and bias_dtype == torch.int32:
        expected = expected + bias.double()
    expected = expected * scale.double()
    if tokens is not None:
        expected = expected * tokens.double()[:, None]
    if bias is not None and bias_dtype != torch.int32:
        expected = expected + bias.double()
    close(out, expected)


@pytest.mark.parametrize("with_offset", [False, True])
def test_the_default_output_is_int8_with_an_offset(with_offset: bool) -> None:
    x1, x2 = int8(3, 8), int8(8, 5)
    scale, offset = torch.full((5,), 1e-3), torch.arange(5.0)
    out = quant_matmul(x1, x2, scale, offset=offset if with_offset else None)
    assert out.dtype == torch.int8
    exact = (x1.double() @ x2.double()) * 1e-3 + (offset.double() if with_offset else 0)
    assert ((out.double() - exact.clamp(-128, 127)).abs() <= 0.5 + 1e-4).all()


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("shape", [(1,), (3,), (1, 3), (3, 3)])
@pytest.mark.parametrize("with_offset", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
def test_weight_quant_restores_the_weight(
    dtype: torch.dtype, shape: tuple[int, ...], with_offset: bool, with_bias: bool
) -> None:
    torch.manual_seed(1)
    depth, group = 70, 32
    x, weight = torch.randn(2, depth).to(dtype), int8(depth, 3)
    scale, offset = torch.rand(shape).mul(0.01).to(dtype), torch.randn(shape).to(dtype)
    bias = torch.randn(3).to(torch.float16 if dtype == torch.float16 else torch.float32)
    grouped = shape == (3, 3)
    out = weight_quant_batchmatmul(
        x,
        weight,
        scale,
        offset if with_offset else None,
        bias=bias if with_bias else None,
        antiquant_group_size=group if grouped else 0,
    )
    expected = torch.zeros(2, 3, dtype=torch.float64)
    for k in range(depth):
        for n in range(3):
            place = (k // group, n) if grouped else (0,) * (len(shape) - 1) + (n % shape[-1],)
            value = float(weight[k, n]) + (float(offset[place]) if with_offset else 0.0)
            expected[:, n] += x[:, k].double() * value * float(scale[place])
    if with_bias:
        expected = expected + bias.double()
    close(out, expected)


A, B, S = int8(2, 4), int8(4, 3), torch.ones(3)


@pytest.mark.parametrize(
    ("call", "rule"),
    [
        (lambda: quant_matmul(A, B, torch.ones(2)), r"scale must be \[1\] or \[n\]"),
        (lambda: quant_matmul(A, B, S.half()), "scale must be float32"),
        (lambda: quant_matmul(A, A, S), "agree about k"),
        (lambda: quant_matmul(A, B, S, offset=S, output_dtype=5), "offset needs int8"),
        (lambda: quant_matmul(A, B, S, pertoken_scale=torch.ones(2)), "needs float output"),
        (
            lambda: quant_matmul(A, B, S, pertoken_scale=torch.ones(3), output_dtype=5),
            r"pertoken_scale must be \[m\]",
        ),
        (lambda: weight_quant_batchmatmul(A.half(), B, S), "dtype of x"),
        (lambda: weight_quant_batchmatmul(A.half(), B, S[:2].half()), r"\[1\], \[n\] or"),
        (
            lambda: weight_quant_batchmatmul(A.half(), B, S.half(), antiquant_group_size=32),
            "multiple of 32",
        ),
        (lambda: weight_quant_batchmatmul(A.half(), B, S.half(), bias=S), "bias with"),
    ],
)
def test_a_broken_rule_is_named(call, rule: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(RuntimeError, match=rule):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda: quant_matmul(A, B, S.long()),
        lambda: quant_matmul(A.int(), B.int(), S),
        lambda: quant_matmul(A, B, S, output_dtype=3),
        lambda: quant_matmul(A, B, S, x1_dtype=290),
        lambda: weight_quant_batchmatmul(A.half(), B.int(), S.half()),
        lambda: weight_quant_batchmatmul(A.half(), B, S.half(), quant_scale=S),
    ],
)
def test_other_modes_are_refused(call) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(NotImplementedError, match="is not simulated"):
        call()
