"""npu_cross_entropy_loss against torch's cross_entropy in float64."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from ascend_sim.kernels.loss import npu_cross_entropy_loss, npu_cross_entropy_loss_backward
from sim.kernels.numeric import DTYPES, assert_near, draw, gradients

ROWS, CLASSES = 9, 13


def draw_target() -> Tensor:
    return torch.randint(0, CLASSES, (ROWS,), generator=torch.Generator().manual_seed(2))


def draw_weight() -> Tensor:
    return torch.rand(CLASSES, generator=torch.Generator().manual_seed(5)) * 0.9 + 0.1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("ignore", [-100, 4])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_loss_matches_cross_entropy(
    reduction: str, weighted: bool, ignore: int, smoothing: float, dtype: torch.dtype
) -> None:
    logits, target = draw(ROWS, CLASSES, dtype=dtype), draw_target()
    target[2] = 4
    weight = draw_weight() if weighted else None
    loss, log_prob, zloss, lse = npu_cross_entropy_loss(
        logits, target, weight, reduction, ignore, smoothing
    )
    expected = functional.cross_entropy(
        logits.double(),
        target,
        None if weight is None else weight.double(),
        reduction=reduction,
        ignore_index=ignore,
        label_smoothing=smoothing,
    )
    assert loss.shape == ((ROWS,) if reduction == "none" else (1,))
    assert {loss.dtype, log_prob.dtype, zloss.dtype, lse.dtype} == {dtype}
    assert_near(loss, expected.reshape(loss.shape))
    assert_near(log_prob, torch.log_softmax(logits.double(), -1))
    assert zloss.numel() == lse.numel() == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("reduction", "weighted", "ignore"),
    [("mean", False, -100), ("sum", True, 4), ("none", True, 4), ("none", False, -100)],
)
def test_gradient_is_the_derivative(
    reduction: str, weighted: bool, ignore: int, dtype: torch.dtype
) -> None:
    logits, target = draw(ROWS, CLASSES, dtype=dtype), draw_target()
    target[2] = 4
    weight = draw_weight() if weighted else None
    g = draw(ROWS if reduction == "none" else 1, dtype=dtype, seed=3)

    def reference(x: Tensor) -> Tensor:
        return functional.cross_entropy(
            x,
            target,
            None if weight is None else weight.double(),
            reduction=reduction,
            ignore_index=ignore,
        ).reshape(-1)

    (expected,) = gradients(reference, [logits], g)
    _, log_prob, _, _ = npu_cross_entropy_loss(logits, target, weight, reduction, ignore)
    found = npu_cross_entropy_loss_backward(
        g, log_prob, target, weight, reduction=reduction, ignore_index=ignore
    )
    assert found.dtype == dtype
    # The saved log-probabilities are rounded to the dtype, and their exponent is taken: with
    # |log p| up to 6 that is up to six roundings.
    assert_near(found / 6, expected / 6)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"target": torch.zeros(ROWS, dtype=torch.int32)}, "target must be int64"),
    ({"target": torch.full((ROWS,), -100)}, "every target must be in"),
    ({"target": torch.full((ROWS,), CLASSES)}, "every target must be in"),
    ({"weight": torch.ones(CLASSES).half()}, "weight must be float32"),
    ({"weight": torch.zeros(CLASSES)}, r"weight must lie in \(0, 1\]"),
    ({"reduction": "max"}, "reduction must be"),
    ({"ignore_index": CLASSES}, "ignore_index must be below"),
    ({"label_smoothing": 1.0}, "label_smoothing must be in"),
    ({"lse_square_scale_for_zloss": 0.1}, "z-loss is not enabled"),
    ({"return_zloss": True}, "z-loss is not enabled"),
    ({"input": torch.ones(2, 3, 4)}, "input must be"),
]


@pytest.mark.parametrize(("change", "rule"), BAD)
def test_arguments_outside_the_document_are_refused(change: dict[str, Any], rule: str) -> None:
    arguments: dict[str, Any] = {"input": draw(ROWS, CLASSES), "target": draw_target(), **change}
    with pytest.raises(RuntimeError, match=rule):
        npu_cross_entropy_loss(**arguments)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"label_smoothing": 0.1, "reduction": "sum"}, "label_smoothing has no gradient"),
        ({"weight": torch.ones(CLASSES)}, "only the defaults"),
        ({"ignore_index": 4}, "only the defaults"),
    ],
)
def test_gradients_the_device_does_not_have_are_refused(change: dict[str, Any], rule: str) -> None:
    log_prob = torch.log_softmax(draw(ROWS, CLASSES), -1)
    with pytest.raises(RuntimeError, match=rule):
        npu_cross_entropy_loss_backward(torch.ones(1), log_prob, draw_target(), **change)
