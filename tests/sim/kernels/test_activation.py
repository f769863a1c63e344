"""The activation kernels against torch's own float64 functions and their autograd."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from ascend_sim.kernels import activation
from sim.kernels.numeric import DTYPES, assert_near, draw, gradients

Shape = tuple[int, ...]
GATED = [((2, 6), -1), ((5, 3, 14), 2), ((4, 7), 0), ((3, 2, 5), -2), ((8,), 0), ((1, 0, 4), -1)]


def swiglu(x: Tensor, dim: int) -> Tensor:
    gate, up = x.chunk(2, dim)
    return functional.silu(gate) * up


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "dim"), GATED)
def test_swiglu_gates_with_the_first_half(shape: Shape, dim: int, dtype: torch.dtype) -> None:
    x = draw(*shape, dtype=dtype)
    y = activation.npu_swiglu(x, dim)
    assert y.dtype == dtype
    assert_near(y, swiglu(x.double(), dim))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "dim"), GATED)
def test_swiglu_backward_is_the_derivative(shape: Shape, dim: int, dtype: torch.dtype) -> None:
    x = draw(*shape, dtype=dtype)
    g = torch.randn_like(swiglu(x, dim))
    (expected,) = gradients(lambda t: swiglu(t, dim), [x], g)
    actual = activation.npu_swiglu_backward(g, x, dim)
    assert actual.dtype == dtype
    assert_near(actual, expected)


def test_swiglu_reads_a_strided_view() -> None:
    x = draw(6, 10).t()
    assert_near(activation.npu_swiglu(x, 0), swiglu(x.double(), 0))


@pytest.mark.parametrize(
    ("x", "dim", "rule"),
    [
        (torch.ones(3, 5), -1, "must be even"),
        (torch.ones(3, 4), 2, "dim must be in"),
        (torch.ones(3, 4, dtype=torch.float64), -1, "float16, bfloat16 or float32"),
        (torch.ones([2] * 9), -1, "1 to 8 dims"),
    ],
)
def test_swiglu_refuses_what_the_document_excludes(x: Tensor, dim: int, rule: str) -> None:
    with pytest.raises(RuntimeError, match=rule):
        activation.npu_swiglu(x, dim)


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("approximate", [0, 1])
@pytest.mark.parametrize("dtype", DTYPES)
def test_geglu_activates_the_chosen_half(dtype: torch.dtype, approximate: int, left: bool) -> None:
    def reference(x: Tensor) -> tuple[Tensor, Tensor]:
        first, second = x.chunk(2, 1)
        activated, other = (first, second) if left else (second, first)
        gelu = functional.gelu(activated, approximate="tanh" if approximate else "none")
        return other * gelu, gelu

    x = draw(3, 10, 2, dtype=dtype)
    y, gelu = activation.npu_geglu(x, 1, approximate, left)
    expected_y, expected_gelu = reference(x.double())
    assert_near(y, expected_y)
    assert_near(gelu, expected_gelu)
    g = draw(3, 5, 2, dtype=dtype, seed=1)
    (expected,) = gradients(lambda t: reference(t)[0], [x], g)
    assert_near(activation.npu_geglu_grad(g, x, gelu, 1, approximate, left), expected)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_gelu_and_its_gradient(dtype: torch.dtype, approximate: str) -> None:
    x, g = draw(7, 9, dtype=dtype) * 3, draw(7, 9, dtype=dtype, seed=1)
    reference: Callable[[Tensor], Tensor] = lambda t: functional.gelu(t, approximate=approximate)  # noqa: E731
    assert_near(activation.npu_gelu(x, approximate=approximate), reference(x.double()))
    (expected,) = gradients(reference, [x], g)
    assert_near(activation.npu_gelu_backward(g, x, approximate=approximate), expected)


def test_gelu_refuses_an_unknown_approximation() -> None:
    with pytest.raises(RuntimeError, match="approximate must be 'none' or 'tanh'"):
        activation.npu_gelu(torch.ones(2), approximate="sigmoid")


@pytest.mark.parametrize("dtype", DTYPES)
def test_gelu_mul_activates_the_first_half(dtype: torch.dtype) -> None:
    x = draw(3, 5, 12, dtype=dtype)
    first, second = x.double().chunk(2, -1)
    assert_near(activation.npu_gelu_mul(x), functional.gelu(first) * second)


@pytest.mark.parametrize("dtype", DTYPES)
def test_fast_gelu_and_its_gradient(dtype: torch.dtype) -> None:
    x, g = draw(11, 3, dtype=dtype), draw(11, 3, dtype=dtype, seed=1)
    reference: Callable[[Tensor], Tensor] = lambda t: t / (1 + torch.exp(-1.702 * t))  # noqa: E731
    assert_near(activation.npu_fast_gelu(x), reference(x.double()))
    assert torch.equal(activation.fast_gelu(x), activation.npu_fast_gelu(x))
    (expected,) = gradients(reference, [x], g)
    assert_near(activation.npu_fast_gelu_backward(g, x), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_silu_in_place_and_its_gradient(dtype: torch.dtype) -> None:
    x, g = draw(4, 5, dtype=dtype), draw(4, 5, dtype=dtype, seed=1)
    y = activation.npu_silu(x)
    assert_near(y, functional.silu(x.double()))
    (expected,) = gradients(functional.silu, [x], g)
    assert_near(activation.npu_silu_backward(g, x, y), expected)
    storage = x.data_ptr()
    assert activation.npu_silu_(x).data_ptr() == storage
    assert torch.equal(x, y)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("shape", "dim"), [((5, 8), -1), ((3, 4, 6), 1), ((2, 3, 6), 2)])
def test_clipped_swiglu_cuts_off_and_shifts(
    shape: Shape, dim: int, interleaved: bool, dtype: torch.dtype
) -> None:
    x = draw(*shape, dtype=dtype) * 2
    y = activation.npu_clipped_swiglu(
        x, dim=dim, alpha=1.5, limit=1.25, bias=0.5, interleaved=interleaved
    )
    width = x[(0,) * (dim % x.dim())].numel()
    found = y.double().flatten().tolist()
    for number, row in enumerate(x.double().view(-1, width).tolist()):
        half = width // 2
        for i in range(half):
            a, b = (row[2 * i], row[2 * i + 1]) if interleaved else (row[i], row[half + i])
            a, b = min(a, 1.25), min(max(b, -1.25), 1.25)
            expected = torch.tensor(a / (1 + math.exp(-1.5 * a)) * (b + 0.5))
            assert_near(torch.tensor(found[number * half + i]), expected, dtype=dtype)


def test_clipped_swiglu_leaves_rows_outside_its_groups_at_zero() -> None:
    x = draw(5, 8)
    whole = activation.npu_clipped_swiglu(x)
    part = activation.npu_clipped_swiglu(x, group_index=torch.tensor([1, 2]))
    assert torch.equal(part[:3], whole[:3])
    assert not part[3:].any()
    with pytest.raises(RuntimeError, match="group_index must be int64"):
        activation.npu_clipped_swiglu(x, group_index=torch.tensor([1], dtype=torch.int32))
    with pytest.raises(RuntimeError, match="contiguous, with 2 dims"):
        activation.npu_clipped_swiglu(x.t())
