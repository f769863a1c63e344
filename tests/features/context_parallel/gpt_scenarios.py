"""A small GPT whose sequence is spread over ranks: losses and parameters of some steps."""

import inspect
import zlib
from typing import Any

import torch
import torch.distributed as dist

Named = dict[str, torch.Tensor]
LENGTH, BATCH, VOCABULARY = 32, 2, 64
DOCUMENT = 16  # where the second one begins
LATENT: dict[str, Any] = {  # queries and keys are 12 wide, values 6
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_head_dim": 8,
    "qk_pos_emb_head_dim": 4,
    "v_head_dim": 6,
    "rope_type": "rope",
}


def make_config(dtype: torch.dtype, **changes: Any) -> Any:
    """A small transformer config, with the parallel sizes of this process."""
    from megatron.core import parallel_state
    from megatron.core.transformer.transformer_config import TransformerConfig

    settings: dict[str, Any] = {
        "tensor_model_parallel_size": parallel_state.get_tensor_model_parallel_world_size(),
        "context_parallel_size": parallel_state.get_context_parallel_world_size(),
        "num_layers": 2,
        "hidden_size": 32,
        "ffn_hidden_size": 40,
        "num_attention_heads": 8,
        "num_query_groups": 4,
        "add_bias_linear": False,
        "bf16": dtype is torch.bfloat16,
        "params_dtype": dtype,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
    }
    if "backend" in changes:
        from megatron.core.transformer.enums import AttnBackend

        changes["attention_backend"] = AttnBackend[changes.pop("backend")]
    if changes.get("multi_latent_attention"):
        from megatron.core.transformer.transformer_config import MLATransformerConfig

        del settings["num_query_groups"]
        return MLATransformerConfig(**(settings | LATENT | changes))
    return TransformerConfig(**(settings | changes))


class Norm(torch.nn.LayerNorm):
    """A norm of rows that are spread over tensor-parallel ranks."""

    def __init__(self, config: Any, hidden_size: int, eps: float) -> None:
        super().__init__(hidden_size, eps=eps)
        for parameter in self.parameters():
            parameter.sequence_parallel = True  # type: ignore[attr-defined]


def make_model(
    config: Any, *, with_te_names: bool = False, positions: str = "rope", **stage: bool
) -> Any:
    """GPT of upstream's local layers, or those with TransformerEngine's names."""
    from megatron.core.models.gpt import gpt_layer_specs
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules

    name = "with_transformer_engine" if with_te_names else "local"
    layer = getattr(gpt_layer_specs, f"get_gpt_layer_{name}_spec")(
        num_experts=config.num_moe_experts, multi_latent_attention=config.multi_latent_attention
    )
    if config.sequence_parallel:  # which upstream's fallback norm refuses
        layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = Norm
        layers = [layer] * config.num_layers
        layer = TransformerBlockSubmodules(layer_specs=layers, layer_norm=Norm)
    model = GPTModel(
        config,
        layer,
        vocab_size=VOCABULARY,
        max_sequence_length=LENGTH,
        position_embedding_type=positions,
        **stage,
    ).cuda()
    if config.num_moe_experts:
        _fill_experts(model)
    return model.bfloat16() if config.bf16 else model


def _fill_experts(model: Any) -> None:
    """Values by the expert's number among those of all ranks."""
    for name, parameter in model.named_parameters():
        generator = torch.Generator().manual_seed(zlib.crc32(_name_expert(name, model).encode()))
        if ".local_experts." in name or name.endswith("router.weight"):
            with torch.no_grad():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / 8)


def _name_expert(name: str, model: Any) -> str:
    """A parameter's name with the number of its expert among those of all ranks."""
    from megatron.core import parallel_state

    before, found, after = name.partition(".local_experts.")
    if not found:
        return name
    number, _, rest = after.partition(".")
    share = model.config.num_moe_experts // parallel_state.get_expert_model_parallel_world_size()
    first = parallel_state.get_expert_model_parallel_rank() * share
    return f"{before}{found}{first + int(number)}.{rest}"


def make_batch(seed: int, *, mask: str) -> dict[str, Any]:
    """Token ids, positions, labels and mask of the whole sequence.

    Masks: "none"; "causal"; "reset", two documents; "restart", the same and positions begin anew;
    "late", causal but that the last row does not see the first; "band", nothing far back.
    """
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH), generator=generator)
    hidden = None
    if mask != "none":
        hidden = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1).expand(BATCH, 1, -1, -1)
    positions = torch.arange(LENGTH)
    if mask == "late" and hidden is not None:
        hidden = hidden.clone()
        hidden[..., -1, 0] = True
    if mask == "band" and hidden is not None:
        hidden = hidden | ~torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(-4)
    if mask == "restart":
        positions = positions % DOCUMENT
    if mask in ("reset", "restart"):
        document = (torch.arange(LENGTH) >= DOCUMENT).int()
        hidden = hidden | (document[:, None] != document[None, :]) if hidden is not None else None
    batch = {
        "tokens": tokens,
        "position_ids": positions.expand(BATCH, LENGTH).contiguous(),
        "labels": tokens.roll(-1, 1),
        "attention_mask": None if hidden is None else hidden.contiguous(),
    }
    return {name: None if x is None else x.cuda() for name, x in batch.items()}


def slice_batch(batch: dict[str, Any]) -> dict[str, Any]:
    """This rank's part, cut by upstream."""
    from megatron.core.utils import get_batch_on_this_cp_rank

    options = inspect.signature(get_batch_on_this_cp_rank).parameters
    extra = {"is_hybrid_cp": False} if "is_hybrid_cp" in options else {}
    sliced: dict[str, Any] = get_batch_on_this_cp_rank(batch, **extra)
    return sliced


def train(
    dtype: torch.dtype = torch.float32,
    *,
    steps: int = 2,
    mask: str = "causal",
    with_te_names: bool = False,
    positions: str = "rope",
    **changes: Any,
) -> Named:
    """Train some steps of plain SGD.

    Args:
        dtype: of the parameters.
        steps: how many.
        mask: see `make_batch`.
        with_te_names: layers of the spec with TransformerEngine's names.
        positions: how the model knows them.
        changes: of the config.

    Returns:
        The losses, summed over ranks, and the parameters in the end.
    """
    config = make_config(dtype, **changes)
    model = make_model(config, with_te_names=with_te_names, positions=positions)
    losses = []
    for step in range(steps):
        whole = make_batch(step, mask=mask)
        batch = slice_batch(dict(whole))
        batch["attention_mask"] = _place_mask(config, whole, batch["attention_mask"])
        out = model(
            batch["tokens"], batch["position_ids"], batch["attention_mask"], labels=batch["labels"]
        )
        loss = out.float().sum() / (BATCH * LENGTH)
        model.zero_grad()
        loss.backward()
        _sum_gradients(model)
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter -= 0.5 * parameter.grad
        losses.append(_sum_over_context(loss.detach().clone()))
    named = {"losses": torch.stack(losses)}
    return named | {_name_expert(name, model): p.detach() for name, p in model.named_parameters()}


def _place_mask(config: Any, whole: dict[str, Any], own: Any) -> Any:
    """The mask as the options want it: its blocks set, all of it on the CPU, or as it is."""
    if getattr(config, "adaptive_cp_manually_set_mask_list", False):
        from mindspeed.core.context_parallel.mask_blocks import set_mask_blocks

        hidden = whole["attention_mask"][0, 0]
        size = config.context_parallel_size // (config.ulysses_degree_in_cp or 1)
        chunks = torch.arange(LENGTH, device=hidden.device).chunk(2 * size)
        rows = [torch.cat([chunks[r], chunks[-1 - r]]) for r in range(size)]
        needs = [[not bool(hidden[a][:, b].all()) for b in rows] for a in rows]
        set_mask_blocks(needs, lambda a, b: hidden[a][:, b][None, None])
        return None
    on_cpu = getattr(config, "attention_mask_on_cpu", False)
    return whole["attention_mask"].cpu() if on_cpu else own


def _sum_over_context(x: torch.Tensor) -> torch.Tensor:
    from megatron.core import parallel_state

    if parallel_state.get_context_parallel_world_size() > 1:
        dist.all_reduce(x, group=parallel_state.get_context_parallel_group())
    return x


def _sum_gradients(model: Any) -> None:
    """Over context-parallel ranks; those of norms also over sequence-parallel ones."""
    from megatron.core import parallel_state

    for parameter in model.parameters():
        if not getattr(parameter, "allreduce", True):
            dist.all_reduce(parameter.grad, group=_find_expert_group())
            continue
        _sum_over_context(parameter.grad)
        if getattr(parameter, "sequence_parallel", False):
            dist.all_reduce(parameter.grad, group=parallel_state.get_tensor_model_parallel_group())


def _find_expert_group() -> Any:
    """The ranks that have the same experts."""
    from megatron.core import parallel_state

    return parallel_state.get_expert_data_parallel_group()


def train_packed(*, padded: bool, with_te_names: bool = False, **changes: Any) -> Named:
    """One step on two packed documents: the loss and every gradient.

    Args:
        padded: also give the padded lengths, the real ones being shorter.
        with_te_names: layers of the spec with TransformerEngine's names.
        changes: of the config.
    """
    from megatron.core import parallel_state
    from megatron.core.packed_seq_params import PackedSeqParams

    size = parallel_state.get_context_parallel_world_size()
    rank = parallel_state.get_context_parallel_rank()
    batch = make_batch(0, mask="none")
    rows = []
    for document in torch.arange(LENGTH, device="cpu").split(DOCUMENT):
        chunks = document.chunk(2 * size)
        rows += [chunks[rank], chunks[2 * size - 1 - rank]]
    index = torch.cat(rows).cuda()
    starts = torch.tensor([0, DOCUMENT, LENGTH], dtype=torch.int32).cuda()
    lengths = {"cu_seqlens_q": starts, "cu_seqlens_kv": starts}
    if padded:
        real = torch.tensor([0, DOCUMENT - 1, LENGTH - 3], dtype=torch.int32).cuda()
        lengths = {"cu_seqlens_q": real, "cu_seqlens_kv": real}
        lengths |= {"cu_seqlens_q_padded": starts, "cu_seqlens_kv_padded": starts}
    packed = PackedSeqParams(
        qkv_format="thd", max_seqlen_q=DOCUMENT, max_seqlen_kv=DOCUMENT, **lengths
    )
    tokens, positions, labels = (
        batch[name][:1, index] for name in ("tokens", "position_ids", "labels")
    )
    model = make_model(make_config(torch.float32, **changes), with_te_names=with_te_names)
    out = model(tokens, positions, None, labels=labels, packed_seq_params=packed)
    return _finish(model, out)


def train_documents(**changes: Any) -> Named:
    """The same documents on a single rank, told apart by a mask."""
    batch = make_batch(0, mask="reset")
    model = make_model(make_config(torch.float32, **changes))
    tokens, positions, mask, labels = (
        batch[name][:1] for name in ("tokens", "position_ids", "attention_mask", "labels")
    )
    return _finish(model, model(tokens, positions, mask, labels=labels))


def _finish(model: Any, losses: torch.Tensor) -> Named:
    loss = losses.float().sum() / LENGTH
    loss.backward()
    _sum_gradients(model)
    named = {"loss": _sum_over_context(loss.detach().clone())}
    return named | {name: p.grad for name, p in model.named_parameters()}


def train_pipeline(**changes: Any) -> Named:
    """One step of two micro-batches over two pipeline stages: losses, gradients of this stage."""
    from megatron.core import parallel_state
    from megatron.core.pipeline_parallel.schedules import get_forward_backward_func

    config = make_config(
        torch.float32, pipeline_model_parallel_size=2, pipeline_dtype=torch.float32, **changes
    )
    first = parallel_state.is_pipeline_first_stage()
    last = parallel_state.is_pipeline_last_stage()
    model = make_model(config, pre_process=first, post_process=last)
    for parameter in model.parameters():
        parameter.main_grad = torch.zeros_like(parameter)
    batches = iter([slice_batch(make_batch(seed, mask="causal")) for seed in range(2)])

    def sum_losses(out: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        loss = out.float().sum() / (BATCH * LENGTH)
        return loss, {"loss": loss.detach().clone()}

    def step(source: Any, stage: Any) -> tuple[torch.Tensor, Any]:
        batch = next(source)
        mask = batch["attention_mask"]
        out = stage(batch["tokens"], batch["position_ids"], mask, labels=batch["labels"])
        return out, sum_losses

    found = get_forward_backward_func()(
        forward_step_func=step,
        data_iterator=batches,
        model=model,
        num_microbatches=2,
        seq_length=LENGTH,
        micro_batch_size=BATCH,
        forward_only=False,
    )
    _sum_gradients(model)
    # The schedule multiplies losses by the number of context-parallel ranks, for DDP to average.
    size = parallel_state.get_context_parallel_world_size()
    named = {name: p.grad / size for name, p in model.named_parameters()}
    return named | {f"loss {i}": _sum_over_context(x["loss"].clone()) for i, x in enumerate(found)}
