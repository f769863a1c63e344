"""Compare what two runs of a scenario answered."""

import torch

# Relative to the largest element of the reference. fp32: a few units in the last place, summed in
# another order. bf16 has 8 bits of mantissa (2^-8 = 0.4 %), and a rounding more or less passes
# through every later layer.
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}


def assert_same(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """The same names, and for each the same dtype, shape and bits."""
    assert actual.keys() == expected.keys()
    for name, want in expected.items():
        got = actual[name]
        assert (got.dtype, got.shape) == (want.dtype, want.shape), name
        same = _bytes(got).equal(_bytes(want))
        assert same, f"{name}: differs by up to {(got - want).abs().max().item():g}"


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def assert_near(
    actual: dict[str, torch.Tensor],
    expected: dict[str, torch.Tensor],
    *,
    computed_in: torch.dtype = torch.float32,
    case: str = "",
    slack: float = 1.0,
) -> None:
    """The same names, dtypes and shapes, values within tolerance.

    Args:
        actual: what to judge.
        expected: the reference.
        computed_in: the narrowest dtype of the computation; a result may be in a wider one.
        case: for messages.
        slack: times the tolerance, where several modules round one after another.
    """
    assert actual.keys() == expected.keys()
    for name, want in expected.items():
        got = actual[name]
        assert (got.dtype, got.shape) == (want.dtype, want.shape), name
        assert torch.isfinite(got).all(), f"{name}: not finite"
        scale = want.float().abs().max().item()
        error = (got.float() - want.float()).abs().max().item()
        limit = max(TOLERANCES[want.dtype], TOLERANCES[computed_in]) * max(scale, 1e-6) * slack
        assert error <= limit, f"{case} {computed_in} {name}: off by {error:g}, allowed {limit:g}"
