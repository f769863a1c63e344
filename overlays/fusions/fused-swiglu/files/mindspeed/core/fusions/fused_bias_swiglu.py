"""SwiGLU as one Ascend operator, for Megatron's MLP, experts and shared experts.

    swiglu(x) = silu(a) * b   with [a, b] = x split in two along the last dimension

`torch_npu.npu_swiglu` computes it, and its gradient, in one launch each. (Operator page: torch_npu
API reference, `torch_npu.npu_swiglu`.) The operator has no bias, no clamp and no offset: a bias is
added before it, the others are refused.

Dims: s tokens, h half the width of the input.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

_OPTION = "--use-fused-swiglu (use_fused_swiglu)"


def attach_fused_swiglu(module: Any, inner: Any) -> Any:
    """The activation of an MLP or of grouped experts; a function at the hook point `activation`."""
    require_operator()
    return activate


def activate(
    module: Any, x: torch.Tensor, bias: torch.Tensor | None, scale: torch.Tensor | None
) -> torch.Tensor:
    """swiglu(x + bias) * scale, keeping what upstream keeps under the module's config.

    With bias_activation_fusion a scaled result is computed anew in the backward pass instead of
    kept, and the input may be kept as fp8 or marked for offloading.

    Args:
        module: with `config`.
        x: [..., 2h].
        bias: broadcast over x, or None.
        scale: [..., 1], or None.

    Returns:
        [..., h], the dtype of x.
    """
    config = module.config
    if not config.bias_activation_fusion:
        y = fused_swiglu(x if bias is None else x + bias)
        return y if scale is None else (y * scale).to(y.dtype)
    fp8 = config.activation_func_fp8_input_store
    if scale is not None:
        return fused_weighted_swiglu(x if bias is None else x + bias, scale, fp8)
    return fused_bias_swiglu(
        x, bias, fp8, config.cpu_offloading and config.cpu_offloading_activations
    )


def fused_swiglu(x: torch.Tensor) -> torch.Tensor:
    """silu(a) * b for [a, b] = x.

    Args:
        x: [..., 2h], on an NPU, fp16, bf16 or fp32.

    Returns:
        [..., h], same dtype. The gradient is the operator's own; `x` is what it keeps.
    """
    import torch_npu

    return torch_npu.npu_swiglu(x, dim=-1)


def fused_bias_swiglu(
    x: torch.Tensor,
    bias: torch.Tensor | None,
    fp8_input_store: bool = False,
    cpu_offload_input: bool = False,
) -> torch.Tensor:
    """swiglu(x + bias), keeping for the backward pass what Megatron's own function keeps.

    Args:
        x: [..., 2h].
        bias: broadcast over x, or None.
        fp8_input_store: keep x as float8_e4m3fn; the device must have that type.
        cpu_offload_input: mark the kept tensors for TransformerEngine's offloading.

    Returns:
        [..., h], the dtype of x.
    """
    if bias is None and not fp8_input_store and not cpu_offload_input:
        return fused_swiglu(x)
    return _FusedSwiglu.apply(x, bias, None, fp8_input_store, cpu_offload_input)


def fused_weighted_swiglu(
    x: torch.Tensor, weights: torch.Tensor, fp8_input_store: bool = False
) -> torch.Tensor:
    """swiglu(x) * weights; the backward pass computes swiglu(x) anew instead of keeping it.

    Args:
        x: [s, 2h].
        weights: [s, 1], each token's routing probability, often in a wider dtype than x.
        fp8_input_store: keep x as float8_e4m3fn; the device must have that type.

    Returns:
        [s, h], the dtype of x. The product is taken in the wider of both dtypes.
    """
    return _FusedSwiglu.apply(x, None, weights, fp8_input_store, False)


class _FusedSwiglu(torch.autograd.Function):
    """y = swiglu(x + bias) * weights, either of them optional.

    dx = swiglu'(x + bias, g * weights);  dbias = dx, summed over tokens;
    dweights = sum over the width of g * swiglu(x + bias), in the dtype of the weights.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        bias: torch.Tensor | None,
        weights: torch.Tensor | None,
        fp8_input_store: bool,
        cpu_offload_input: bool,
    ) -> torch.Tensor:
        kept = x.to(torch.float8_e4m3fn) if fp8_input_store else x
        if cpu_offload_input:
            for tensor in (kept, bias):
                if tensor is not None:
                    tensor.activation_offloading = True  # type: ignore[attr-defined]
        ctx.save_for_backward(kept, bias, weights)
        ctx.dtype = x.dtype
        y = fused_swiglu(x if bias is None else x + bias)
        return y if weights is None else (y * weights).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        import torch_npu

        kept, bias, weights = ctx.saved_tensors
        x = kept.to(ctx.dtype)
        if bias is not None:
            x = x + bias
        grad_y = grad if weights is None else (grad * weights).to(ctx.dtype)
        grad_x = torch_npu.npu_swiglu_backward(grad_y, x, dim=-1)
        grad_bias = grad_weights = None
        if bias is not None and ctx.needs_input_grad[1]:
            grad_bias = grad_x.sum_to_size(bias.shape)
        if weights is not None and ctx.needs_input_grad[2]:
            products = fused_swiglu(x) * grad.to(weights.dtype)
            grad_weights = products.sum(dim=-1, keepdim=True).to(weights.dtype)
        return grad_x, grad_bias, grad_weights, None, None


def check_fused_swiglu(config: Any) -> Iterator[tuple[str, str]]:
    """What the operator cannot do and `config` asks for; a rule of the option.

    Reads the config only: valid on machines without an NPU.

    Yields:
        The rule that is broken, and what to change.
    """
    if config.activation_func is not F.silu or not config.gated_linear_unit:
        name = getattr(config.activation_func, "__name__", config.activation_func)
        yield (
            f"the operator computes SwiGLU only, activation_func is {name} and gated_linear_unit "
            f"is {config.gated_linear_unit}",
            "set --swiglu (activation_func=torch.nn.functional.silu, gated_linear_unit=True)",
        )
    for field, off, why in (
        ("activation_func_clamp_value", None, "the operator does not clamp"),
        ("glu_linear_offset", 0.0, "the operator adds no offset"),
        ("use_te_activation_func", False, "TransformerEngine would compute it instead"),
        ("use_transformer_engine_op_fuser", False, "TransformerEngine would compute it instead"),
    ):
        value = getattr(config, field, off)
        if value is not None and value != off:
            yield f"{why}, {field} is {value}", f"set {field}={off}"


def require_operator() -> None:
    """Make sure that the operator can run here.

    Raises:
        RuntimeError: there is no NPU, or torch_npu lacks the operator.
    """
    try:
        import torch_npu
    except ImportError as error:
        raise RuntimeError(f"{_OPTION} needs torch_npu, which fails to import: {error}") from error
    if not torch_npu.npu.is_available():
        raise RuntimeError(f"{_OPTION} needs an NPU, and torch_npu finds none on this machine")
    if not hasattr(torch_npu, "npu_swiglu"):
        raise RuntimeError(f"{_OPTION} needs torch_npu.npu_swiglu: torch_npu is too old")
