"""What scenarios of several features are made of: configs, calls that fit a release, gradients.

Scenarios run on pristine trees too, so options of ours are set only where they are asked for.
"""

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F

Named = dict[str, torch.Tensor]


def make_config(dtype: torch.dtype, **changes: Any) -> Any:
    """A small config of a Llama-like transformer: SwiGLU, no biases, no dropout."""
    from megatron.core import parallel_state
    from megatron.core.transformer.transformer_config import TransformerConfig

    settings: dict[str, Any] = {
        "tensor_model_parallel_size": parallel_state.get_tensor_model_parallel_world_size(),
        "num_layers": 2,
        "hidden_size": 32,
        "ffn_hidden_size": 40,
        "num_attention_heads": 4,
        "activation_func": F.silu,
        "gated_linear_unit": True,
        "add_bias_linear": False,
        "bf16": dtype is torch.bfloat16,
        "params_dtype": dtype,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "attention_softmax_in_fp32": True,
        "masked_softmax_fusion": False,
    }
    return TransformerConfig(**(settings | changes))


def has_field(name: str) -> bool:
    """Whether this tree's TransformerConfig has a field."""
    from megatron.core.transformer.transformer_config import TransformerConfig

    return name in {field.name for field in dataclasses.fields(TransformerConfig)}


def make_groups() -> Any:
    """The process groups that newer releases pass to constructors; the oldest take none."""
    from megatron.core import process_groups_config as module

    for name in ("ProcessGroupCollection", "ModelCommProcessGroups"):
        make = getattr(getattr(module, name, None), "use_mpu_process_groups", None)
        if make is not None:
            return make()
    return None


def call(function: Callable[..., Any], **keywords: Any) -> Any:
    """Call with those keywords that this release's signature has."""
    known = inspect.signature(function).parameters
    if "model_comm_pgs" in known and "pg_collection" in keywords:
        keywords["model_comm_pgs"] = keywords["pg_collection"]
    return function(**{key: value for key, value in keywords.items() if key in known})


def make_random(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """A leaf on the device, normally distributed."""
    return torch.randn(*shape, device="cuda", dtype=dtype).requires_grad_()


def perturb(module: torch.nn.Module) -> None:
    """Move biases and norm weights off 0 and 1, which would hide a wrong one."""
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)


@contextmanager
def count_operator(name: str) -> Iterator[list[str]]:
    """Yields a list that grows by the name at each call of `torch_npu.<name>` from Python."""
    import torch_npu

    operator, calls = getattr(torch_npu, name), []

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        return operator(*args, **kwargs)

    setattr(torch_npu, name, counted)
    try:
        yield calls
    finally:
        setattr(torch_npu, name, operator)


def run_backward(
    module: torch.nn.Module | None, out: torch.Tensor, **leaves: torch.Tensor
) -> Named:
    """Backward with a gradient that differs at every element; every gradient by name."""
    out.backward(torch.randn_like(out))
    named = {"out": out} | {f"grad {name}": find_grad(leaf) for name, leaf in leaves.items()}
    parameters = dict(module.named_parameters()) if module is not None else {}
    return named | {f"grad {name}": find_grad(p) for name, p in parameters.items()}


def find_grad(tensor: torch.Tensor) -> torch.Tensor:
    """The gradient, wherever the release keeps it."""
    grad = getattr(tensor, "main_grad", None) if tensor.grad is None else tensor.grad
    assert grad is not None
    return grad


def make_gpt(config: Any, **changes: Any) -> Any:
    """A GPT of the local spec with rotary embeddings, on the device."""
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel

    keywords: dict[str, Any] = {
        "num_experts": config.num_moe_experts,
        "normalization": config.normalization,
        "qk_layernorm": config.qk_layernorm,
    }
    spec = changes.pop("spec", None) or call(get_gpt_layer_local_spec, **keywords)
    settings: dict[str, Any] = {
        "vocab_size": 64,
        "max_sequence_length": 32,
        "position_embedding_type": "rope",
    }
    model = GPTModel(config, spec, **(settings | changes)).cuda()
    return model.bfloat16() if config.params_dtype is torch.bfloat16 else model


def run_gpt_step(model: Any, *, with_mask: bool = True, length: int = 13) -> Named:
    """One forward and backward of two sequences: token losses and every gradient."""
    tokens = torch.randint(0, 64, (2, length), device="cuda")
    positions = torch.arange(length, device="cuda").expand(2, length)
    mask = torch.ones(length, length, dtype=torch.bool, device="cuda").triu(1)
    mask = mask.expand(2, 1, length, length)
    losses = model(tokens, positions, mask if with_mask else None, labels=tokens.roll(-1, 1))
    losses.float().mean().backward()
    return {"losses": losses} | {f"grad {n}": find_grad(p) for n, p in model.named_parameters()}
