"""LayerNorm and RMSNorm with TransformerEngine's constructors and keys.

    LayerNorm: y = (x - mean(x)) / sqrt(var(x) + eps) * g + b
    RMSNorm:   y = x / sqrt(mean(x^2) + eps) * g

over the last dimension, in fp32 inside; g is 1 + weight with `zero_centered_gamma`. The result has
the dtype of the weight, as TransformerEngine's has.
"""

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from mindspeed.core.operators import require_operator
from mindspeed.te.pytorch.module import TransformerEngineModule, fill_with


def normalize(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    kind: str,
    eps: float,
    zero_centered_gamma: bool = False,
    fused: bool = False,
) -> torch.Tensor:
    """Normalize the last dimension.

    Args:
        x: [..., h].
        weight: [h].
        bias: [h], for LayerNorm.
        kind: LayerNorm or RMSNorm.
        eps: added to the variance.
        zero_centered_gamma: scale with 1 + weight.
        fused: RMSNorm by Ascend's operator.

    Returns:
        [..., h], the dtype of `weight`.
    """
    dtype, scale = weight.dtype, weight
    x = x.to(dtype)
    if fused:
        return _load_operator()(x, weight, eps=eps, zero_centered=zero_centered_gamma)
    if zero_centered_gamma:
        # In fp32: 1 + a small bf16 weight would lose it.
        x, scale = x.float(), 1 + weight.float()
        bias = None if bias is None else bias.float()
    if kind == "LayerNorm":
        return F.layer_norm(x, weight.shape, scale, bias, eps).to(dtype)
    return F.rms_norm(x, weight.shape, scale, eps).to(dtype)


def use_operator(config: Any) -> bool:
    """Whether a config asks for RMSNorm by Ascend's operator (option of fusions/fused-rmsnorm).

    Raises:
        RuntimeError: it does, and the operator cannot run on this machine.
    """
    if not getattr(config, "use_fused_rmsnorm", False):
        return False
    require_operator("npu_rms_norm", option="--use-fused-rmsnorm (use_fused_rmsnorm)")
    return True


@cache
def _load_operator() -> Callable[..., torch.Tensor]:
    """From the overlay that brings the option; base/te does not require it."""
    function: Callable[..., torch.Tensor]
    function = importlib.import_module("mindspeed.core.fusions.rms_norm").rms_norm
    return function


class _Norm(TransformerEngineModule):
    """Constructor arguments and parameters of both."""

    kind: str
    fused = False

    def __init__(
        self,
        normalized_shape: Any = None,
        eps: float = 1e-5,
        sequence_parallel: bool | None = None,
        params_dtype: torch.dtype | None = None,
        zero_centered_gamma: bool = False,
        hidden_size: Any = None,
        *,
        device: Any = "cuda",
        dtype: torch.dtype | None = None,
        sm_margin: Any = 0,
    ) -> None:
        super().__init__()
        shape = hidden_size if normalized_shape is None else normalized_shape
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.eps = eps
        self.zero_centered_gamma = zero_centered_gamma
        self.sequence_parallel = sequence_parallel
        settings: dict[str, Any] = {
            "dtype": params_dtype or dtype or torch.get_default_dtype(),
            "device": device,
        }
        gamma = fill_with(0.0 if zero_centered_gamma else 1.0)
        self._add_parameter("weight", shape, init_method=gamma, **settings)
        if self.kind == "LayerNorm":
            self._add_parameter("bias", shape, init_method=fill_with(0.0), **settings)
        if sequence_parallel is not None:
            for parameter in self.parameters():
                parameter.sequence_parallel = sequence_parallel  # type: ignore[attr-defined]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalize [..., h]."""
        return normalize(
            x,
            self.weight,
            self._parameters.get("bias"),
            kind=self.kind,
            eps=self.eps,
            zero_centered_gamma=self.zero_centered_gamma,
            fused=self.fused,
        )


class LayerNorm(_Norm):
    """Layer normalization (arXiv 1607.06450)."""

    kind = "LayerNorm"


class RMSNorm(_Norm):
    """Root mean square normalization (arXiv 1910.07467); `fused` chooses Ascend's operator."""

    kind = "RMSNorm"


def apply_options(norm: torch.nn.Module, config: Any) -> torch.nn.Module:
    """Give a norm that upstream's TENorm has built what this project's options ask for.

    Those of an installed TransformerEngine have operators of their own, and are left alone.
    """
    if isinstance(norm, RMSNorm):
        norm.fused = use_operator(config)
    return norm
