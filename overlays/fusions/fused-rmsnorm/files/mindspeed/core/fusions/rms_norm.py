"""RMSNorm as one Ascend operator, in the place of torch.nn.RMSNorm.

    y = x / sqrt(mean(x^2) + eps) * g      over the last dimension

`torch_npu.npu_rms_norm` computes it in fp32, rounds once to the dtype of x, and keeps x and one
number a row for the backward pass. (Operator page: torch_npu API reference,
`torch_npu.npu_rms_norm`. Method: arXiv 1910.07467.) With zero-centred weights g is 1 + weight,
added in fp32.
"""

from typing import Any

import torch
from mindspeed.core.operators import require_operator

_OPTION = "--use-fused-rmsnorm (use_fused_rmsnorm)"


class FusedRMSNorm(torch.nn.RMSNorm):
    """torch.nn.RMSNorm by the operator: the same parameter, the same checkpoints.

    Unlike Megatron's wrapper of the torch module it takes sequence parallelism: the weight is
    marked, and Megatron sums its gradient over the tensor-parallel ranks, which saw other tokens.
    """

    def __init__(self, config: Any, hidden_size: int, eps: float) -> None:
        """Build the module.

        Args:
            config: Megatron's TransformerConfig.
            hidden_size: width of the last dimension.
            eps: added to the mean square.

        Raises:
            RuntimeError: the operator cannot run on this machine.
        """
        require_operator("npu_rms_norm", option=_OPTION)
        super().__init__(hidden_size, eps=eps)
        self.zero_centered = config.layernorm_zero_centered_gamma
        if self.zero_centered:
            torch.nn.init.zeros_(self.weight)
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalize the last dimension.

        Args:
            x: [..., h], on an NPU, fp16, bf16 or fp32; h is `hidden_size`.

        Returns:
            [..., h], the dtype of x.
        """
        return rms_norm(x, self.weight, eps=self.eps, zero_centered=self.zero_centered)


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, *, eps: float, zero_centered: bool = False
) -> torch.Tensor:
    """The operator, for x of [..., h] and a weight of [h]; see `FusedRMSNorm.forward`.

    The weight is fp32 or has the dtype of x; it gets its gradient in its own dtype.
    """
    import torch_npu

    # In bf16, 1 + a small weight would lose it.
    scale = 1.0 + weight.float() if zero_centered else weight
    y: torch.Tensor = torch_npu.npu_rms_norm(x, scale, epsilon=eps)[0]
    return y
