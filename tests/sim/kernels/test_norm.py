"""The normalisation kernels against definitions written in float64."""

import pytest
import torch
from torch import Tensor

from ascend_sim.kernels import norm
from sim.kernels.numeric import DTYPES, assert_near, draw, gradients

Shape = tuple[int, ...]
SHAPES = [((4, 8), 1), ((3, 1, 7), 1), ((2, 3, 5), 2), ((6,), 1), ((2, 2, 3, 129), 1)]


def rms_norm(x: Tensor, gamma: Tensor, epsilon: float) -> Tensor:
    dims = tuple(range(-gamma.dim(), 0))
    return x / torch.sqrt((x * x).mean(dims, keepdim=True) + epsilon) * gamma


def layer_norm(x: Tensor, gamma: Tensor, beta: Tensor, epsilon: float) -> Tensor:
    dims = tuple(range(-gamma.dim(), 0))
    centred = x - x.mean(dims, keepdim=True)
    variance = (centred * centred).mean(dims, keepdim=True)
    return centred / torch.sqrt(variance + epsilon) * gamma + beta


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "tail"), SHAPES)
def test_rms_norm_and_its_gradient(shape: Shape, tail: int, dtype: torch.dtype) -> None:
    x, gamma = draw(*shape, dtype=dtype), draw(*shape[-tail:], dtype=dtype, seed=1)
    g = draw(*shape, dtype=dtype, seed=2)
    y, rstd = norm.npu_rms_norm(x, gamma, 1e-5)
    assert y.dtype == dtype
    assert rstd.dtype == torch.float32
    assert rstd.shape == (*shape[:-tail], *[1] * tail)
    assert_near(y, rms_norm(x.double(), gamma.double(), 1e-5))
    dims = tuple(range(-tail, 0))
    assert_near(rstd, (x.double().square().mean(dims, keepdim=True) + 1e-5) ** -0.5)
    dx, dgamma = norm.npu_rms_norm_backward(g, x, gamma, rstd)
    expected_dx, expected_dgamma = gradients(lambda a, b: rms_norm(a, b, 1e-5), [x, gamma], g)
    assert dx.dtype == dtype
    assert_near(dx, expected_dx)
    assert_near(dgamma, expected_dgamma)


def test_rms_norm_returns_a_float32_gamma_gradient_for_bf16() -> None:
    x, gamma = draw(4, 8, dtype=torch.bfloat16), torch.ones(8, dtype=torch.bfloat16)
    _, rstd = norm.npu_rms_norm(x, gamma)
    assert norm.npu_rms_norm_backward(x, x, gamma, rstd)[1].dtype == torch.float32


def test_rms_norm_takes_a_float32_gamma_beside_bf16() -> None:
    x, gamma = draw(4, 8, dtype=torch.bfloat16), draw(8, seed=1)
    y, _ = norm.npu_rms_norm(x, gamma)
    assert y.dtype == torch.bfloat16
    assert_near(y, rms_norm(x.double(), gamma.double(), 1e-6))


@pytest.mark.parametrize(
    ("gamma", "rule"),
    [
        (torch.ones(7), "trailing dims"),
        (torch.ones(1, 4, 8), "trailing dims"),
        (torch.ones(8, dtype=torch.bfloat16), "gamma must be"),
        (torch.ones(8, dtype=torch.float64), "float16, bfloat16 or float32"),
    ],
)
def test_rms_norm_refuses_a_gamma_that_does_not_fit(gamma: Tensor, rule: str) -> None:
    with pytest.raises(RuntimeError, match=rule):
        norm.npu_rms_norm(torch.ones(4, 8), gamma)


def test_rms_norm_backward_refuses_a_foreign_rstd() -> None:
    x = torch.ones(4, 8)
    with pytest.raises(RuntimeError, match="rstd must have shape"):
        norm.npu_rms_norm_backward(x, x, torch.ones(8), torch.ones(4))


@pytest.mark.parametrize("dtype", DTYPES)
def test_gemma_rms_norm_weighs_with_one_plus_gamma(dtype: torch.dtype) -> None:
    x, gamma = draw(3, 5, 16, dtype=dtype), draw(16, dtype=dtype, seed=1)
    y, rstd = norm.npu_gemma_rms_norm(x, gamma)
    assert rstd.shape == (3, 5, 1)
    assert_near(y, rms_norm(x.double(), 1 + gamma.double(), 1e-6))
    with pytest.raises(RuntimeError, match="contiguous"):
        norm.npu_gemma_rms_norm(x.transpose(0, 1), gamma)


@pytest.mark.parametrize("dtype", DTYPES)
def test_add_rms_norm_forms_agree(dtype: torch.dtype) -> None:
    x1, x2 = draw(3, 7, dtype=dtype), draw(3, 7, dtype=dtype, seed=1)
    gamma = draw(7, dtype=dtype, seed=2)
    y, rstd, x = norm.npu_add_rms_norm(x1, x2, gamma, 1e-5)
    assert torch.equal(x, x1 + x2)
    assert_near(y, rms_norm(x.double(), gamma.double(), 1e-5))
    functional_form = norm.npu_add_rms_norm_v2_functional(x1, x2, gamma, 1e-5)
    torch.testing.assert_close(functional_form, (rstd, y, x), rtol=0, atol=0)
    wide, narrow, rstd_cast, x_cast = norm.npu_add_rms_norm_cast(x1, x2, gamma, 1e-5)
    assert wide.dtype == torch.float32
    torch.testing.assert_close(
        (wide.to(dtype), narrow, rstd_cast, x_cast), (y, y, rstd, x), rtol=0, atol=0
    )
    assert torch.equal(norm.npu_add_rms_norm_v2(x1, x2, gamma, 1e-5), rstd)
    assert torch.equal(x1, y)
    assert torch.equal(x2, x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "tail"), SHAPES)
def test_deep_norm_and_its_gradient(shape: Shape, tail: int, dtype: torch.dtype) -> None:
    x, gx, g = (draw(*shape, dtype=dtype, seed=s) for s in (0, 1, 2))
    beta, gamma = (draw(*shape[-tail:], dtype=dtype, seed=s) for s in (3, 4))

    def reference(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
        return layer_norm(0.7 * a + b, d, c, 1e-5)

    mean, rstd, y = norm.npu_deep_norm(x, gx, beta, gamma, 0.7, 1e-5)
    assert mean.shape == rstd.shape == (*shape[:-tail], *[1] * tail)
    assert_near(y, reference(x.double(), gx.double(), beta.double(), gamma.double()))
    actual = norm.npu_deep_norm_backward(g, x, gx, gamma, mean, rstd, 0.7)
    expected = gradients(reference, [x, gx, beta, gamma], g)
    for found, wanted in zip(actual, expected, strict=True):
        assert_near(found, wanted, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_layer_norm_eval_matches_the_definition(dtype: torch.dtype) -> None:
    x, gamma, beta = (
        draw(*shape, dtype=dtype, seed=s) for s, shape in enumerate([(4, 3, 5), (3, 5), (3, 5)])
    )
    expected = layer_norm(x.double(), gamma.double(), beta.double(), 1e-5)
    assert_near(norm.npu_layer_norm_eval(x, [3, 5], gamma, beta), expected)
    bare = layer_norm(x.double(), torch.ones(3, 5).double(), torch.zeros(3, 5).double(), 1e-5)
    assert_near(norm.npu_layer_norm_eval(x, [3, 5]), bare)


@pytest.mark.parametrize("with_sum", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_add_layer_norm_and_its_gradient(dtype: torch.dtype, with_sum: bool) -> None:
    x1, x2, g, g_sum = (draw(4, 9, dtype=dtype, seed=s) for s in range(4))
    gamma, beta = (draw(9, dtype=dtype, seed=s) for s in (5, 6))
    y, mean, rstd, x = norm.npu_add_layer_norm(x1, x2, gamma, beta, 1e-5, with_sum)
    summed = x1.double() + x2.double()
    assert_near(y, layer_norm(summed, gamma.double(), beta.double(), 1e-5))
    assert_near(x, summed if with_sum else torch.zeros_like(summed))

    def reference(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
        return torch.stack([layer_norm(a + b, c, d, 1e-5), a + b])

    upstream = torch.stack([g, g_sum if with_sum else torch.zeros_like(g)])
    expected = gradients(reference, [x1, x2, gamma, beta], upstream)
    actual = norm.npu_add_layer_norm_backward(
        g, x1, x2, rstd, mean, gamma, g_sum if with_sum else None
    )
    for found, wanted in zip(actual, expected, strict=True):
        assert_near(found, wanted, dtype=dtype)
