"""The dropout family: bit order, factors, agreement of forward and backward, repeatability."""

from itertools import count

import pytest
import torch
from torch import Tensor

from ascend_sim import rng
from ascend_sim.kernels import dropout
from ascend_sim.kernels.dropout_mask import pack_bits, unpack_bits
from sim.kernels.numeric import DTYPES, assert_near, draw, gradients


@pytest.fixture(autouse=True)
def _fixed_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeds without a device: each draw advances the offset."""
    offsets = count(0, 4)
    monkeypatch.setattr(dropout, "draw_seed", lambda: (7, next(offsets)))


def bits(mask: Tensor) -> list[int]:
    """The bits of a mask in element order, one by one."""
    return [byte >> bit & 1 for byte in mask.tolist() for bit in range(8)]


@pytest.mark.parametrize("shape", [(3,), (128,), (129,), (5, 7, 11), (0,)])
def test_bit_masks_hold_eight_elements_a_byte(shape: tuple[int, ...]) -> None:
    keep = torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.5
    mask = pack_bits(keep)
    assert mask.dtype == torch.uint8
    assert mask.numel() == -(-keep.numel() // 128) * 16
    expected = keep.flatten().int().tolist()
    assert bits(mask) == expected + [0] * (mask.numel() * 8 - keep.numel())
    assert torch.equal(unpack_bits(mask, keep.numel()), keep.flatten())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("p", [0.0, 0.1, 0.5])
def test_npu_dropout_scales_what_its_mask_keeps(p: float, dtype: torch.dtype) -> None:
    x, g = draw(9, 37, dtype=dtype), draw(9, 37, dtype=dtype, seed=1)
    y, mask = dropout.npu_dropout(x, p)
    keep = torch.tensor(bits(mask)[: x.numel()]).view(9, 37).double()
    assert_near(y, x.double() * keep / (1 - p))
    assert_near(dropout.npu_dropout_backward(g, mask, p), g.double() * keep / (1 - p))
    again, same = dropout.npu_dropout_do_mask(x, mask, p)
    assert torch.equal(again, y)
    assert same is mask


def test_npu_dropout_of_probability_one_is_zero_even_for_infinities() -> None:
    x = torch.tensor([1.0, torch.inf, -2.0])
    y, mask = dropout.npu_dropout(x, 1.0)
    assert not y.any()
    assert not mask.any()


def test_npu_dropout_draws_anew_each_time_and_keeps_the_right_share() -> None:
    x = torch.ones(100, 100)
    first, second = dropout.npu_dropout(x, 0.25)[0], dropout.npu_dropout(x, 0.25)[0]
    assert not torch.equal(first, second)
    for y in (first, second):
        # 10,000 trials: four standard deviations are 0.0173.
        assert abs(float((y != 0).float().mean()) - 0.75) < 0.0173


def test_gen_mask_is_the_mask_of_seed_and_offset() -> None:
    like = torch.ones(1)
    mask = dropout.npu_dropout_gen_mask(like, [3, 50], 0.3, 5, 2)
    assert torch.equal(mask, dropout.npu_dropout_gen_mask(like, [150], 0.3, 5, 2))
    assert not torch.equal(mask, dropout.npu_dropout_gen_mask(like, [150], 0.3, 5, 6))
    keep = rng.keep_mask((150,), float(torch.tensor(0.7)), 5, 2)
    assert bits(mask)[:150] == keep.int().tolist()


@pytest.mark.parametrize("dtype", DTYPES)
def test_byte_masks_are_shaped_like_the_input(dtype: torch.dtype) -> None:
    x, g = draw(5, 11, dtype=dtype), draw(5, 11, dtype=dtype, seed=1)
    y, mask = dropout.dropout_and_byte_mask(x, 0.4)
    assert mask.shape == x.shape
    assert_near(y, x.double() * mask.double() / 0.6)
    found = dropout.dropout_with_byte_mask_backward(g, mask, 0.4)
    assert_near(found, g.double() * mask.double() / 0.6)


def test_byte_dropout_is_the_identity_outside_training() -> None:
    x = draw(4, 5)
    for p, train in ((0.5, False), (0.0, True)):
        assert torch.equal(dropout.dropout_with_byte_mask(x, p, train), x)
    assert not torch.equal(dropout.dropout_with_byte_mask(x, 0.5, True), x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_add_softmax_dropout_and_its_gradient(dtype: torch.dtype) -> None:
    x, bias, g = (draw(2, 16, 128, 128, dtype=dtype, seed=s) for s in range(3))
    mask, softmax, y = dropout.npu_dropout_with_add_softmax(x, bias, 0.5, 0.1, -1)
    keep = mask.view(x.shape).double()

    def reference(a: Tensor) -> Tensor:
        return torch.softmax(bias.double() + 0.5 * a, -1) * keep / 0.9

    assert mask.shape == (x.numel(),)
    assert_near(softmax, torch.softmax(bias.double() + 0.5 * x.double(), -1))
    assert_near(y, reference(x.double()))
    (expected,) = gradients(reference, [x], g)
    dx, passed_on = dropout.npu_dropout_with_add_softmax_backward(g, mask, softmax, 0.5, 0.1, -1)
    assert_near(dx, expected)
    assert torch.equal(passed_on, g)


@pytest.mark.parametrize(
    ("shape", "dim", "rule"),
    [
        ((32, 128, 128), -1, "4 dims"),
        ((2, 16, 128, 100), -1, "H and W must be in"),
        ((2, 15, 128, 128), -1, "multiple of 32"),
        ((2, 16, 128, 128), 3, "dim must be -1"),
    ],
)
def test_add_softmax_dropout_refuses_other_sizes(
    shape: tuple[int, ...], dim: int, rule: str
) -> None:
    x = torch.ones(shape)
    with pytest.raises(RuntimeError, match=rule):
        dropout.npu_dropout_with_add_softmax(x, x, 1.0, 0.1, dim)


def test_probabilities_and_masks_that_do_not_fit_are_refused() -> None:
    x = torch.ones(300)
    with pytest.raises(RuntimeError, match=r"must be in \[0, 1\]"):
        dropout.npu_dropout(x, 1.5)
    with pytest.raises(RuntimeError, match="has 48 bytes, not 32"):
        dropout.npu_dropout_backward(x, torch.zeros(32, dtype=torch.uint8), 0.5)
    with pytest.raises(RuntimeError, match="mask must be uint8"):
        dropout.npu_dropout_do_mask(x, torch.zeros(48), 0.5)
