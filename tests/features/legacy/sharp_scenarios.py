"""A SwiGLU MLP with outputs of order 1, and the same with its operator replaced by a wrong one.

The guide's own unit test compares outputs of about 1e-3 within 1e-3, which zeros would pass.
"""

from argparse import Namespace
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

Named = dict[str, torch.Tensor]


def _swap_halves(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    a, b = x.chunk(2, dim)
    return a * F.silu(b)


def _use_gelu(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    a, b = x.chunk(2, dim)
    return F.gelu(a) * b


def _give_zeros(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    return x.chunk(2, dim)[0] * 0


WRONG: dict[str, Callable[..., torch.Tensor]] = {
    "swapped halves": _swap_halves,
    "gelu": _use_gelu,
    "zeros": _give_zeros,
}


def run(model: str, *, fused: bool, wrong: str = "") -> Named:
    """Output and gradients of `model`, "legacy" or "core", in fp32.

    Args:
        model: ParallelMLP of megatron.legacy, or MLP of megatron.core.
        fused: use_fused_swiglu.
        wrong: a key of WRONG: computes that in place of the operator.
    """
    if wrong:
        import torch_npu

        torch_npu.npu_swiglu = WRONG[wrong]
    torch.manual_seed(5)
    module = (_make_legacy if model == "legacy" else _make_core)(fused).cuda()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
    x = torch.randn(32, 2, 12, device="cuda", requires_grad=True)
    out = module(x)[0]
    out.backward(torch.randn_like(out))
    leaves = {"x": x, **dict(module.named_parameters())}
    # An output bias is returned, not added: it takes no part.
    grads = {f"grad {name}": t.grad for name, t in leaves.items() if t.grad is not None}
    return {"out": out, **grads}


def _make_config(fused: bool) -> Any:
    from megatron.core.transformer.transformer_config import TransformerConfig

    return TransformerConfig(
        num_layers=2,
        hidden_size=12,
        num_attention_heads=4,
        gated_linear_unit=True,
        activation_func=F.silu,
        add_bias_linear=False,
        **({"use_fused_swiglu": True} if fused else {}),
    )


def _make_legacy(fused: bool) -> torch.nn.Module:
    from megatron.legacy.model.transformer import ParallelMLP
    from megatron.training import global_vars

    off = dict.fromkeys(("openai_gelu", "onnx_safe", "squared_relu", "bias_gelu_fusion"), False)
    global_vars.set_args(Namespace(**off, swiglu=True, use_fused_swiglu=fused))
    module: torch.nn.Module = ParallelMLP(_make_config(False))
    return module


def _make_core(fused: bool) -> torch.nn.Module:
    from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
    from megatron.core.transformer.mlp import MLP, MLPSubmodules

    parts = MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear)
    module: torch.nn.Module = MLP(_make_config(fused), parts)
    return module
