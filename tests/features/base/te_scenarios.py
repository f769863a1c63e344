"""Scenarios with a GPT that a layer spec describes: Megatron's local one, or TransformerEngine's
names.

Parameters are filled by a name that both specs share, so the same model comes out of both.
"""

import inspect
import os
import zlib
from collections.abc import Iterator
from multiprocessing import dummy
from typing import Any

import torch
import torch.nn.functional as F
from torch import multiprocessing

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

    for name in ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN", "NVTE_UNFUSED_ATTN"):
        os.environ.pop(name, None)  # upstream sets them for a whole process, by attention_backend
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


def find_grad(parameter: torch.Tensor) -> torch.Tensor:
    """The gradient; with sequence parallel that of a replicated parameter is summed over ranks."""
    from megatron.core import parallel_state

    grad = getattr(parameter, "main_grad", None) if parameter.grad is None else parameter.grad
    assert grad is not None
    if getattr(parameter, "sequence_parallel", False):
        group = parallel_state.get_tensor_model_parallel_group()
        torch.distributed.all_reduce(grad, group=group)
    return grad


def save_gpt(spec: str, dtype: torch.dtype, folder: str, *, recipe: dict[str, Any]) -> Named:
    """Write a distributed checkpoint of a GPT; its losses."""
    from megatron.core import dist_checkpointing

    model = make_gpt(spec, make_config(dtype, **dict(recipe)))
    dist_checkpointing.save(model.sharded_state_dict(metadata=_checkpoint_metadata()), folder)
    return {"losses": compute_losses(model)}


def load_gpt(
    spec: str, dtype: torch.dtype, folder: str, *, recipe: dict[str, Any], strictness: str
) -> Named:
    """Read a distributed checkpoint into a GPT with other values; its losses."""
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing.validation import StrictHandling

    model = make_gpt(spec, make_config(dtype, **dict(recipe)))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.5)
    wanted = model.sharded_state_dict(metadata=_checkpoint_metadata())
    found = dist_checkpointing.load(wanted, folder, strict=StrictHandling(strictness))
    if isinstance(found, tuple):
        found, missing, unexpected = found
        assert not [k for k in missing | unexpected if "_extra_state" not in k], (
            missing,
            unexpected,
        )
    model.load_state_dict(found, strict=strictness == "raise_all")
    return {"losses": compute_losses(model)}


def _checkpoint_metadata() -> dict[str, Any]:
    """What writing asks for; and writers that are threads, which hang less than forks do."""
    multiprocessing.get_context = lambda kind=None: dummy  # type: ignore[assignment]
    # torch asks for it before it broadcasts objects, and torch_npu gives None.
    os.environ["TORCH_NPU_DEVICE_CAPABILITY"] = "8.0"
    _adapt_old_writer()
    from megatron.core import parallel_state

    group = parallel_state.get_data_parallel_group(with_context_parallel=True)
    return {"dp_cp_group": group}


def _adapt_old_writer() -> None:
    """Core 0.12 calls a private function of torch that has another signature since torch 2.7."""
    from functools import partial

    from megatron.core.dist_checkpointing.strategies import filesystem_async
    from torch.distributed.checkpoint import filesystem

    if "serialization_format" not in inspect.getsource(filesystem_async):
        kind = filesystem.SerializationFormat.TORCH_SAVE
        write = partial(filesystem._write_item, serialization_format=kind)
        filesystem_async._write_item = write


def list_keys(recipe: dict[str, Any]) -> Named:
    """The keys of the state dict, each with the number of elements that is saved."""
    state = make_gpt("te", make_config(torch.float32, **dict(recipe))).state_dict()
    return {k: torch.tensor(0 if v is None else v.numel()) for k, v in state.items()}


def count_launches(operator: str, recipe: dict[str, Any]) -> Named:
    """The losses, and how often a forward pass calls an operator of torch_npu."""
    import torch_npu

    real, calls = getattr(torch_npu, operator), []

    def count(*args: Any, **kwargs: Any) -> Any:
        calls.append(operator)
        return real(*args, **kwargs)

    setattr(torch_npu, operator, count)
    try:
        losses = compute_losses(make_gpt("te", make_config(torch.float32, **dict(recipe))))
    finally:
        setattr(torch_npu, operator, real)
    return {"losses": losses, "launches": torch.tensor(len(calls))}


def run_fused_weight_gradient(fused: bool) -> Named:
    """A linear and grouped experts; weight gradients of two passes, summed up in fp32."""
    from megatron.core.extensions import transformer_engine as te

    config = make_config(torch.bfloat16, gradient_accumulation_fusion=fused)
    common = {"config": config, "init_method": torch.nn.init.zeros_, "skip_bias_add": False}
    linear = te.TELayerNormColumnParallelLinear(
        32, 48, bias=True, gather_output=False, is_expert=False, **common
    )
    experts = te.TEColumnParallelGroupedLinear(3, 32, 48, bias=False, is_expert=True, **common)
    named: Named = {}
    for label, module in (("linear", linear), ("experts", experts)):
        for name, parameter in module.named_parameters():
            fill(parameter, name)
            parameter.main_grad = torch.ones(parameter.shape, device="cuda")
            parameter.grad_added_to_main_grad = False
        for step in range(2):
            run_and_accumulate(
                module, step, **({"splits": [3, 0, 4]} if label == "experts" else {})
            )
        named |= {f"{label} {k}": p.main_grad for k, p in module.named_parameters()}
    return named


def run_and_accumulate(module: Any, step: int, splits: list[int] | None = None) -> None:
    """One pass; adds to `main_grad` as Megatron's DistributedDataParallel does."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(7, 32, generator=generator).to("cuda", torch.bfloat16)
    out, _ = module(x[:, None]) if splits is None else module(x, splits)
    out.float().square().sum().backward()
    for parameter in module.parameters():
        if not parameter.grad_added_to_main_grad:
            parameter.main_grad.add_(parameter.grad)
        parameter.grad = None
        parameter.grad_added_to_main_grad = False


ATTENTION_KINDS: dict[str, dict[str, Any]] = {
    "no_mask": {},
    "causal": {},
    "causal_bottom_right": {"queries": 5},
    "padding": {"lengths": (9, 6)},
    "padding_causal": {"lengths": (9, 6)},
    "arbitrary": {},
    "causal, window": {"window": (3, 0)},
    "no_mask, window": {"window": (2, 1)},
    "causal, packed": {"starts": (0, 4, 9)},
    "no_mask, packed with padding": {"starts": (0, 3, 7), "places": (0, 4, 9)},
}


def run_attention(backend: str, dtype: torch.dtype) -> Named:
    """TransformerEngine's attention for every kind of mask; `naive` is a reference in fp64."""
    named: Named = {}
    for label, options in ATTENTION_KINDS.items():
        shape = ("thd" if "packed" in label else "sbhd", options.get("queries", 9))
        leaves = make_attention_inputs(label, *shape, dtype=dtype)
        if backend == "naive":
            query, key, value = (x.cpu().double() for x in leaves)
            out = attend_naively(query, key, value, label, **options).to(dtype)
        else:
            out = attend_by_module(*leaves, backend, label, **options)
        generator = torch.Generator().manual_seed(3)
        out.backward(torch.randn(out.shape, generator=generator).to(out))
        named[f"{label}: out"] = out
        named |= {f"{label}: grad {k}": find_grad(x) for k, x in zip("qkv", leaves, strict=True)}
    return named


def make_attention_inputs(
    label: str, layout: str, queries: int, *, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries [s, 2, 4, 8], keys and values [9, 2, 2, 8]; packed without the batch."""
    generator = torch.Generator().manual_seed(zlib.crc32(label.encode()))
    batch = [] if layout == "thd" else [2]
    shapes = ((queries, *batch, 4, 8), (9, *batch, 2, 8), (9, *batch, 2, 8))
    made = [torch.randn(shape, generator=generator).to("cuda", dtype) for shape in shapes]
    query, key, value = (x.requires_grad_() for x in made)
    return query, key, value


def attend_by_module(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    backend: str,
    label: str,
    **options: Any,
) -> torch.Tensor:
    """By `mindspeed.te.pytorch.DotProductAttention`."""
    from types import SimpleNamespace

    from mindspeed.te.pytorch import DotProductAttention

    module = DotProductAttention(4, 8, num_gqa_groups=2, window_size=options.get("window"))
    module.config = SimpleNamespace(attention_backend=backend)
    kwargs: dict[str, Any] = {"attn_mask_type": label.partition(",")[0]}
    if "lengths" in options:
        real = torch.tensor(options["lengths"], device="cuda")[:, None, None, None]
        kwargs["attention_mask"] = torch.arange(9, device="cuda") >= real
    if label == "arbitrary":
        kwargs["attention_mask"] = make_arbitrary_mask().cuda()
    if "starts" in options:
        table = torch.tensor(options["starts"], dtype=torch.int32, device="cuda")
        places = torch.tensor(options.get("places", options["starts"])).to(table)
        kwargs |= {"cu_seqlens_q": table, "cu_seqlens_kv": table, "qkv_format": "thd"}
        kwargs |= {"cu_seqlens_q_padded": places, "cu_seqlens_kv_padded": places}
    out: torch.Tensor = module(query, key, value, **kwargs)
    return out


def make_arbitrary_mask() -> torch.Tensor:
    """[2, 1, 9, 9], true where masked; every query keeps itself."""
    generator = torch.Generator().manual_seed(11)
    masked = torch.rand(2, 1, 9, 9, generator=generator) < 0.4
    return masked & ~torch.eye(9, dtype=torch.bool)


def attend_naively(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    label: str,
    *,
    queries: int = 9,
    lengths: tuple[int, ...] = (9, 9),
    window: tuple[int, int] | None = None,
    starts: tuple[int, ...] | None = None,
    places: tuple[int, ...] | None = None,
) -> torch.Tensor:
    """One query at a time, over the list of keys that it may see."""
    packed = starts is not None
    if packed:
        query, key, value = (x[:, None] for x in (query, key, value))
    out = []
    for i in range(queries):
        for b in range(query.shape[1]):
            seen = [
                j for j in range(9)
                if _is_seen(label, i, j, b, queries, lengths, window, starts, places)
            ]  # fmt: skip
            for n in range(4):
                if not seen:
                    out.append(torch.zeros(8, dtype=query.dtype))
                    continue
                scores = key[seen, b, n // 2] @ query[i, b, n] / 8**0.5
                out.append(torch.softmax(scores, 0) @ value[seen, b, n // 2])
    stacked = torch.stack(out).view(queries, query.shape[1], 32)
    return stacked[:, 0] if packed else stacked


def _is_seen(
    label: str,
    i: int,
    j: int,
    b: int,
    queries: int,
    lengths: tuple[int, ...],
    window: tuple[int, int] | None,
    starts: tuple[int, ...] | None,
    places: tuple[int, ...] | None,
) -> bool:
    """Whether query i of sequence b sees key j."""
    if label == "arbitrary":
        return not make_arbitrary_mask()[b, 0, i, j]
    if starts is not None:
        homes = [_find_home(token, starts, places or starts) for token in (i, j)]
        if homes[0] is None or homes[0] != homes[1]:
            return False
    if label.startswith("padding") and max(i, j) >= lengths[b]:
        return False
    distance = j - i - (9 - queries if "bottom_right" in label else 0)
    if "causal" in label and distance > 0:
        return False
    return window is None or -window[0] <= distance <= window[1]


def _find_home(token: int, starts: tuple[int, ...], places: tuple[int, ...]) -> int | None:
    """The packed sequence that a token is in; None for padding."""
    for number in range(len(starts) - 1):
        length = starts[number + 1] - starts[number]
        if places[number] <= token < places[number] + length:
            return number
    return None
