"""What the kernel tests share: inputs, float64 gradients, tolerances that belong to a dtype."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

DTYPES = [torch.float32, torch.float16, torch.bfloat16]

# One rounding of the result (2^-24, 2^-11, 2^-8 relative) plus float32 accumulation.
TOLERANCE = {torch.float32: 2e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def draw(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Standard normal values, representable in `dtype`."""
    generator = torch.Generator().manual_seed(seed + 1000 * len(shape))
    return torch.randn(*shape, generator=generator).to(dtype)


def assert_near(
    actual: Tensor, expected: Tensor, *, dtype: torch.dtype | None = None, terms: float = 1.0
) -> None:
    """Compare with a float64 `expected`, at the tolerance of `dtype` (default: of `actual`).

    `terms` is the size of what cancels in the result, where that is more than the result.
    """
    tolerance = TOLERANCE[dtype or actual.dtype]
    scale = max(terms, _scale(expected))
    torch.testing.assert_close(
        actual.double(), expected.double(), rtol=tolerance, atol=tolerance * scale
    )


def _scale(expected: Tensor) -> float:
    """Rounding of a sum is relative to its largest terms, not to a result that cancels."""
    return max(1.0, float(expected.abs().max())) if expected.numel() else 1.0


def gradients(
    function: Callable[..., Tensor], inputs: Sequence[Tensor], upstream: Tensor
) -> tuple[Tensor, ...]:
    """Gradients of sum(function(*inputs) * upstream) by autograd in float64."""
    leaves = [tensor.detach().double().requires_grad_() for tensor in inputs]
    out = function(*leaves)
    return torch.autograd.grad(out, leaves, upstream.double(), allow_unused=False)
