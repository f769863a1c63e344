"""Scenarios with a GPT that a layer spec describes: Megatron's local one, or TransformerEngine's
names.

Parameters are filled by a name that both specs share, so the same model comes out of both.
"""

import inspect
import zlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

Named = dict[str, torch.Tensor]

# TransformerEngine fuses a norm into the linear behind it, and numbers the weights of experts.
_NORMS = {
    "self_attention.linear_qkv.layer_norm_": "input_layernorm.",
    "mlp.linear_fc1.layer_norm_": "pre_mlp_layernorm.",
    "self_attention.linear_q_up_proj.layer_norm_": "self_attention.q_layernorm.",
    "self_attention.linear_kv_up_proj.layer_norm_": "self_attention.kv_layernorm.",
}


def make_config(dtype: torch.dtype, *, mla: bool = False, **changes: Any) -> Any:
    """A small config of a modern GPT: RMSNorm, SwiGLU, RoPE, GQA."""
    from megatron.core import parallel_state
    from megatron.core.transformer import transformer_config

    tp = parallel_state.get_tensor_model_parallel_world_size()
    settings: dict[str, Any] = {
        "tensor_model_parallel_size": tp,
        "num_layers": 2,
        "hidden_size": 32,
        "ffn_hidden_size": 48,
        "num_attention_heads": 4,
        "num_query_groups": 2,
        "normalization": "RMSNorm",
        "activation_func": F.silu,
        "gated_linear_unit": True,
        "add_bias_linear": False,
        "bf16": dtype is torch.bfloat16,
        "params_dtype": dtype,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
    }
    if "attention_backend" in changes:
        from megatron.core.transformer.enums import AttnBackend

        changes["attention_backend"] = AttnBackend[changes["attention_backend"]]
    kind = transformer_config.MLATransformerConfig if mla else transformer_config.TransformerConfig
    if mla:
        del settings["num_query_groups"]
        settings |= {
            "q_lora_rank": 16, "kv_lora_rank": 16, "qk_head_dim": 8, "qk_pos_emb_head_dim": 8,
            "v_head_dim": 8, "rope_type": "rope",
        }  # fmt: skip
    return kind(**(settings | changes))


def make_spec(spec: str, config: Any) -> Any:
    """The layer spec by name, `local` or `te`."""
    from megatron.core.models.gpt import gpt_layer_specs

    make = getattr(
        gpt_layer_specs,
        {
            "local": "get_gpt_layer_local_spec",
            "te": "get_gpt_layer_with_transformer_engine_spec",
        }[spec],
    )
    wanted = {
        "num_experts": config.num_moe_experts,
        "moe_grouped_gemm": bool(config.num_moe_experts) and spec == "te",
        "qk_layernorm": config.qk_layernorm,
        "multi_latent_attention": config.multi_latent_attention,
        "normalization": config.normalization,
    }
    known = inspect.signature(make).parameters
    return make(**{name: value for name, value in wanted.items() if name in known})


def make_gpt(spec: str, config: Any, **changes: Any) -> Any:
    """A GPT of two layers whose parameters depend on their shared names only."""
    from megatron.core.models.gpt.gpt_model import GPTModel

    settings = {"vocab_size": 64, "max_sequence_length": 32, "position_embedding_type": "rope"}
    model = GPTModel(config, make_spec(spec, config), **(settings | changes)).cuda()
    for name, parameter in shared_names(model):
        fill(parameter, name)
    return model


def shared_names(model: Any) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Each parameter under the name that it has with the local spec."""
    for name, parameter in model.named_parameters():
        shared = name
        for fused, apart in _NORMS.items():
            shared = shared.replace(fused, apart)
        if ".experts.linear_fc" in shared:
            linear, _, kind = shared.rpartition(".")
            stem = kind.rstrip("0123456789")
            parts = (kind[len(stem) :], linear.rpartition(".")[2], stem)
            shared = ".".join((linear.rpartition(".")[0], "local_experts", *parts))
        yield shared, parameter


def fill(parameter: torch.nn.Parameter, name: str) -> None:
    """Values by name; tensor-parallel ranks that hold different slices get different ones."""
    from megatron.core import parallel_state

    split = getattr(parameter, "tensor_model_parallel", False)
    rank = parallel_state.get_tensor_model_parallel_rank() if split else 0
    generator = torch.Generator().manual_seed(zlib.crc32(f"{name} {rank}".encode()))
    values = torch.randn(parameter.shape, generator=generator)
    values = 1 + values / 4 if "norm" in name and name.endswith("weight") else values / 4
    with torch.no_grad():
        parameter.copy_(values)


def run_gpt(
    spec: str,
    dtype: torch.dtype,
    *,
    recipe: dict[str, Any] | None = None,
    mask_type: str = "causal",
) -> Named:
    """Loss of each token, and every gradient by its shared name.

    Args:
        spec: local or te.
        dtype: of the parameters.
        recipe: fields of the config.
        mask_type: not used by TransformerEngine's names for causal.
    """
    config = make_config(dtype, **dict(recipe or {}))
    model = make_gpt(spec, config)
    model = model.bfloat16() if dtype is torch.bfloat16 else model
    losses = compute_losses(model)
    losses.float().mean().backward()
    named = {"losses": losses}
    return named | {f"grad {name}": find_grad(p) for name, p in shared_names(model)}


def compute_losses(model: Any, *, length: int = 12) -> torch.Tensor:
    """Forward with tokens that are the same for every model."""
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(0, 64, (2, length), generator=generator).cuda()
    positions = torch.arange(length, device="cuda").expand(2, length)
    mask = torch.ones(length, length, dtype=torch.bool, device="cuda").triu(1)
    losses: torch.Tensor = model(
        tokens, positions, mask.expand(2, 1, length, length), labels=tokens.roll(-1, 1)
    )
    return losses


def find_grad(parameter: torch.nn.Parameter) -> torch.Tensor:
    """The gradient; with sequence parallel that of a replicated parameter is summed over ranks."""
    from megatron.core import parallel_state

    grad = getattr(parameter, "main_grad", None) if parameter.grad is None else parameter.grad
    assert grad is not None
    if getattr(parameter, "sequence_parallel", False):
        group = parallel_state.get_tensor_model_parallel_group()
        torch.distributed.all_reduce(grad, group=group)
    return grad
