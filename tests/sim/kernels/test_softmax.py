"""npu_scaled_masked_softmax against float64 softmax."""

import pytest
import torch
from torch import Tensor

from ascend_sim.kernels.softmax import (
    npu_scaled_masked_softmax,
    npu_scaled_masked_softmax_backward,
)
from sim.kernels.numeric import DTYPES, assert_near, draw, gradients

SHAPE = (2, 3, 32, 64)


def reference(x: Tensor, mask: Tensor, scale: float) -> Tensor:
    return torch.softmax(torch.where(mask, -1e4, x * scale), -1)


def draw_mask(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(4)) < 0.5


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [SHAPE, (2, 1, 32, 64), (1, 1, 32, 64), (32, 64), (2, 1, 1, 64)])
def test_forward_and_gradient(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, g, mask = draw(*SHAPE, dtype=dtype), draw(*SHAPE, dtype=dtype, seed=1), draw_mask(*shape)
    whole = mask.expand(SHAPE)
    y = npu_scaled_masked_softmax(x, mask, 0.7)
    assert y.dtype == dtype
    assert_near(y, reference(x.double(), whole, 0.7))
    (expected,) = gradients(lambda t: reference(t, whole, 0.7), [x], g)
    assert_near(npu_scaled_masked_softmax_backward(g, y, mask, 0.7, False), expected)


def test_fixed_triangle_takes_the_place_of_the_mask() -> None:
    x, g = draw(*SHAPE), draw(*SHAPE, seed=1)
    whole = torch.zeros(SHAPE, dtype=torch.bool)
    for i in range(32):
        whole[:, :, i, i + 1 :] = True
    dummy = torch.zeros(1, 1, 1, 64, dtype=torch.bool)
    y = npu_scaled_masked_softmax(x, dummy, 0.7, True)
    assert_near(y, reference(x.double(), whole, 0.7))
    (expected,) = gradients(lambda t: reference(t, whole, 0.7), [x], g)
    assert_near(npu_scaled_masked_softmax_backward(g, y, dummy, 0.7, True), expected)
    with pytest.raises(RuntimeError, match="fixed_triu_mask ignores the mask"):
        npu_scaled_masked_softmax(x, ~dummy, 0.7, True)


def test_a_fully_masked_row_is_uniform_and_gets_no_gradient() -> None:
    x, mask = draw(1, 1, 32, 32), torch.zeros(1, 1, 32, 32, dtype=torch.bool)
    mask[..., 5, :] = True
    y = npu_scaled_masked_softmax(x, mask)
    assert_near(y[0, 0, 5], torch.full((32,), 1 / 32).double())
    assert not npu_scaled_masked_softmax_backward(x, y, mask, 1, False)[0, 0, 5].any()


@pytest.mark.parametrize(
    ("shape", "mask", "rule"),
    [
        ((3, 32, 64), (32, 64), "4 dims"),
        ((1, 1, 33, 64), (1,), "H = 33"),
        ((1, 1, 32, 16), (1,), "W = 16"),
        ((1, 1, 32, 4128), (1,), "W = 4128"),
        (SHAPE, (2, 3, 32, 32), "does not broadcast"),
        (SHAPE, (1, 2, 3, 32, 64), "does not broadcast"),
    ],
)
def test_sizes_outside_the_document_are_refused(
    shape: tuple[int, ...], mask: tuple[int, ...], rule: str
) -> None:
    with pytest.raises(RuntimeError, match=rule):
        npu_scaled_masked_softmax(torch.ones(shape), torch.zeros(mask, dtype=torch.bool))


def test_a_mask_that_is_not_bool_is_refused() -> None:
    with pytest.raises(RuntimeError, match="mask must be bool"):
        npu_scaled_masked_softmax(torch.ones(SHAPE), torch.zeros(SHAPE))
