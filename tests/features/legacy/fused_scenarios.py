"""The parts of megatron.legacy that compute by Ascend operators, built as its models build them."""

from argparse import Namespace
from typing import Any
from unittest import mock

import torch

Named = dict[str, torch.Tensor]
_ARGS = {
    "apply_layernorm_1p": False,
    "group_query_attention": True,
    "num_query_groups": 1,  # upstream views what more groups would have to copy
    "kv_channels": 16,
    "num_attention_heads": 4,
    "add_bias_linear": True,
    "add_qkv_bias": False,
    "normalization": "LayerNorm",
}


def run(part: str, *, dtype: str, fused: bool) -> Named:
    """Outputs and gradients of one part.

    Args:
        part: rms_norm, layer_norm, softmax or attention.
        dtype: bfloat16 or float32.
        fused: whether the options of the part are on.
    """
    torch.manual_seed(3)
    return {
        "rms_norm": _run_rms_norm,
        "layer_norm": _run_layer_norm,
        "softmax": _run_softmax,
        "attention": _run_attention,
    }[part](getattr(torch, dtype), fused)


def count_calls(part: str, operator: str) -> Named:
    """How often one pass through a fused part calls an operator of torch_npu."""
    import torch_npu

    counted = mock.Mock(wraps=getattr(torch_npu, operator))
    setattr(torch_npu, operator, counted)
    run(part, dtype="bfloat16", fused=True)
    return {"calls": torch.tensor(counted.call_count)}


def _set_args(fused: bool, **more: Any) -> None:
    from megatron.training import global_vars

    ours = {"use_fused_rmsnorm": fused, "use_flash_attn": False}
    global_vars.set_args(Namespace(**{**_ARGS, **ours, **more}))


def _make_config(dtype: torch.dtype, fused: bool, **more: Any) -> Any:
    from megatron.core.transformer.transformer_config import TransformerConfig

    return TransformerConfig(
        num_layers=2,
        hidden_size=64,
        num_attention_heads=4,
        num_query_groups=1,
        attention_dropout=0.0,
        params_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        masked_softmax_fusion=False,
        apply_rope_fusion=False,
        **(more if fused else {}),
    )


def _collect(module: torch.nn.Module, x: torch.Tensor, out: torch.Tensor) -> Named:
    out.backward(torch.randn_like(out))
    leaves = {"x": x, **dict(module.named_parameters())}
    return {"out": out, **{f"grad {k}": t.grad for k, t in leaves.items() if t.grad is not None}}


def _run_norm(dtype: torch.dtype, fused: bool, kind: str) -> Named:
    from megatron.legacy.model.utils import get_norm

    _set_args(fused, normalization=kind)
    more = {"normalization": kind, "use_fused_rmsnorm": True} if kind == "RMSNorm" else {}
    module = get_norm(_make_config(dtype, fused, **more)).cuda().to(dtype)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(7, 2, 64, dtype=dtype, device="cuda", requires_grad=True)
    return _collect(module, x, module(x))


def _run_rms_norm(dtype: torch.dtype, fused: bool) -> Named:
    return _run_norm(dtype, fused, "RMSNorm")


def _run_layer_norm(dtype: torch.dtype, fused: bool) -> Named:
    if fused:
        return _run_norm(dtype, fused, "LayerNorm")
    weight, bias = (torch.nn.Parameter(torch.empty(64).cuda().to(dtype)) for _ in range(2))
    for parameter in (weight, bias):
        torch.nn.init.normal_(parameter)
    x = torch.randn(7, 2, 64, dtype=dtype, device="cuda", requires_grad=True)
    centred = x.float() - x.float().mean(-1, keepdim=True)
    scaled = centred * (centred.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    holder = torch.nn.ParameterDict({"weight": weight, "bias": bias})
    return _collect(holder, x, (scaled * weight.float() + bias.float()).to(dtype))


def _run_softmax(dtype: torch.dtype, fused: bool) -> Named:
    from megatron.legacy.model.enums import AttnMaskType
    from megatron.legacy.model.fused_softmax import FusedScaleMaskSoftmax
    from megatron.legacy.model.utils import attention_mask_func

    found: Named = {}
    triangle = torch.ones(1, 1, 64, 64, dtype=torch.bool, device="cuda").triu(1)
    padding = torch.rand(2, 1, 64, 96, device="cuda") < 0.3
    odd = torch.rand(2, 1, 36, 40, device="cuda") < 0.3  # no size for the operator
    for name, kind, mask, scale in (
        ("causal", AttnMaskType.causal, triangle, None),
        ("scaled", AttnMaskType.causal, triangle, 3.0),
        ("padding", AttnMaskType.padding, padding, 2.0),
        ("none", AttnMaskType.padding, None, None),
        ("odd", AttnMaskType.padding, odd, None),
    ):
        module = FusedScaleMaskSoftmax(
            False, dtype == torch.bfloat16, kind, fused, attention_mask_func, True, scale
        )
        shape = (2, 4, *mask.shape[2:]) if mask is not None else (2, 4, 32, 64)
        x = torch.randn(shape, dtype=dtype, device="cuda", requires_grad=True)
        parts = _collect(module, x, module(x, mask))
        found |= {f"{name} {key}": value for key, value in parts.items()}
    return found


def _run_attention(dtype: torch.dtype, fused: bool) -> Named:
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
    from megatron.legacy.model.enums import AttnMaskType
    from megatron.legacy.model.transformer import ParallelAttention

    model_parallel_cuda_manual_seed(3)
    _set_args(fused, use_flash_attn=fused)
    options = {"use_flash_attn": True, "use_fused_rotary_pos_emb": True}
    config = _make_config(dtype, fused, **options)
    module = ParallelAttention(config, 1, attn_mask_type=AttnMaskType.causal).cuda()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
    x = torch.randn(33, 2, 64, dtype=dtype, device="cuda", requires_grad=True)
    mask = torch.ones(1, 1, 33, 33, dtype=torch.bool, device="cuda").triu(1)
    rotary = torch.randn(33, 1, 1, 16, device="cuda")
    out, _ = module(x, mask, rotary_pos_emb=rotary)
    return _collect(module, x, out)
