"""Scenarios with an RMSNorm of the local layer spec in them."""

from typing import Any

import torch

from features.parts import (
    Named,
    count_operator,
    find_grad,
    make_config,
    make_gpt,
    make_random,
    perturb,
    run_backward,
    run_gpt_step,
)


def make_rms_config(dtype: torch.dtype, *, fused: bool = False, **changes: Any) -> Any:
    """A config with RMSNorm; `fused` only where it is asked for."""
    if fused:
        changes["use_fused_rmsnorm"] = True
    return make_config(dtype, normalization="RMSNorm", **changes)


def run_norm(dtype: torch.dtype, *, shape: tuple[int, ...] = (5, 2, 33), **changes: Any) -> Named:
    """The module that layer specs name, by itself."""
    from megatron.core.transformer.torch_norm import WrappedTorchNorm

    norm = WrappedTorchNorm(make_rms_config(dtype, **changes), shape[-1], eps=1e-4).cuda()
    perturb(norm)
    norm = norm.to(dtype)
    x = make_random(*shape, dtype=dtype)
    return run_backward(norm, norm(x), x=x)


def run_norm_of_view(dtype: torch.dtype, **changes: Any) -> Named:
    """Queries are normed as a slice of the joint projection: not contiguous."""
    from megatron.core.transformer.torch_norm import WrappedTorchNorm

    norm = WrappedTorchNorm(make_rms_config(dtype, **changes), 8, eps=1e-6).cuda()
    perturb(norm)
    norm = norm.to(dtype)
    x = make_random(5, 2, 3, 24, dtype=dtype)
    return run_backward(norm, norm(x[..., 8:16]), x=x)


def run_gpt(dtype: torch.dtype, **changes: Any) -> Named:
    """A GPT whose every norm is an RMSNorm, those of queries and keys as well."""
    model = make_gpt(make_rms_config(dtype, qk_layernorm=True, **changes))
    perturb(model)
    return run_gpt_step(model)


def run_zero_centered(dtype: torch.dtype) -> Named:
    """Weights around 0, which upstream's local spec refuses: the operator beside the formula."""
    from megatron.core.transformer.torch_norm import WrappedTorchNorm

    config = make_rms_config(dtype, fused=True, layernorm_zero_centered_gamma=True)
    norm = WrappedTorchNorm(config, 33, eps=1e-4).cuda()
    assert not norm.weight.any()  # starts as the identity
    perturb(norm)
    norm = norm.to(dtype)
    x = make_random(5, 2, 33, dtype=dtype)
    found = run_backward(norm, norm(x), x=x)
    wide = x.detach().float().requires_grad_()
    weight = norm.weight.detach().float().requires_grad_()
    y = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-4) * (1 + weight)
    grad = torch.randn_like(y)  # the one that run_backward drew is not kept
    norm.zero_grad()
    x.grad = None
    norm(x).backward(grad.to(dtype))
    y.backward(grad.to(dtype).float())
    return {
        "out": found["out"],
        "want out": y.to(dtype),
        "grad x": find_grad(x),
        "want grad x": find_grad(wide).to(dtype),
        "grad weight": find_grad(norm.weight),
        "want grad weight": find_grad(weight).to(dtype),
    }


def count_calls(dtype: torch.dtype, *, fused: bool) -> Named:
    """How often a GPT calls the operator in a forward pass."""
    with count_operator("npu_rms_norm") as calls:
        run_gpt(dtype, fused=fused)
    return {"calls": torch.tensor(len(calls))}
