"""Rotary position embedding: `torch_npu.npu_rotary_mul`, differentiable."""

import torch


def npu_rotary_position_embedding(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mode: int = 0
) -> torch.Tensor:
    """A rotary embedding of positions.

        out = x * cos + rotate(x) * sin

    Args:
        x: [..., d], four dimensions; fp16, bf16 or fp32.
        cos: [..., d], as `x` up to broadcast dimensions.
        sin: as `cos`.
        mode: 0 rotates halves, 1 interleaved pairs.

    Returns:
        The shape and dtype of `x`.

    Raises:
        ValueError: `mode` is neither.
    """
    import torch_npu

    if mode not in (0, 1):
        raise ValueError(f"mode={mode}: must be 0 (halves) or 1 (interleaved)")
    return torch_npu.npu_rotary_mul(x, cos, sin, ("half", "interleave")[mode])
