"""Training a small Llama-like GPT as Megatron does it: DDP, Megatron's optimizer, checkpoints."""

from pathlib import Path
from typing import Any

import torch

from features.parts import Named, call, has_field, make_config, make_gpt

OPTIONS = (
    "use_flash_attn",
    "use_fused_rmsnorm",
    "use_fused_rotary_pos_emb",
    "use_fused_swiglu",
)
LENGTH = 14


def make_model(dtype: torch.dtype, *, on: bool, seed: int = 11, **changes: Any) -> Any:
    """Three layers with grouped queries, rotary embeddings and norms of queries and keys."""
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    torch.manual_seed(seed)
    model_parallel_cuda_manual_seed(seed)
    if on:
        changes |= {name: True for name in OPTIONS if has_field(name)}
    config = make_config(
        dtype,
        num_layers=3,
        num_query_groups=2,
        normalization="RMSNorm",
        qk_layernorm=True,
        **changes,
    )
    return make_gpt(config, share_embeddings_and_output_weights=False)


def make_batches(steps: int, *, rank: int = 0) -> list[torch.Tensor]:
    """Two batches in turn, which a small model learns by heart."""
    generator = torch.Generator("cpu").manual_seed(100 + rank)
    batches = torch.randint(0, 64, (2, 2, LENGTH + 1), generator=generator).cuda()
    return [batches[k % 2] for k in range(steps)]


def compute_loss(model: Any, tokens: torch.Tensor, *, with_mask: bool = True) -> torch.Tensor:
    """The mean loss of two sequences."""
    positions = torch.arange(LENGTH, device="cuda").expand(2, LENGTH)
    mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool, device="cuda").triu(1)
    mask = mask.expand(2, 1, LENGTH, LENGTH)
    labels = tokens[:, 1:].contiguous()
    losses: torch.Tensor = model(
        tokens[:, :-1].contiguous(), positions, mask if with_mask else None, labels=labels
    )
    return losses.float().mean()


def train(dtype: torch.dtype, *, on: bool, steps: int = 20, **changes: Any) -> Named:
    """The loss of each step with torch's AdamW."""
    model = make_model(dtype, on=on, **changes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.005)
    losses = []
    for tokens in make_batches(steps):
        optimizer.zero_grad()
        loss = compute_loss(model, tokens)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return {"losses": torch.stack(losses)}


def wrap_for_training(model: Any, *, distributed: bool) -> tuple[Any, Any]:
    """Megatron's DDP around the model, and its optimizer; `distributed`: sharded over ranks."""
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    settings = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True, use_distributed_optimizer=distributed
    )
    wrapped = DistributedDataParallel(model.config, settings, model)
    options = OptimizerConfig(
        optimizer="adam", lr=0.005, weight_decay=0.01, use_distributed_optimizer=distributed
    )
    return wrapped, get_megatron_optimizer(options, [wrapped])


def train_by_megatron(
    *, on: bool, distributed: bool, steps: int = 20, by_rank: bool = True, **changes: Any
) -> Named:
    """The loss of each step with Megatron's DDP, gradient reduction and optimizer."""
    model, optimizer = wrap_for_training(
        make_model(torch.float32, on=on, **changes), distributed=distributed
    )
    rank = torch.distributed.get_rank() if by_rank else 0
    losses = [step(model, optimizer, tokens) for tokens in make_batches(steps, rank=rank)]
    return {"losses": torch.stack(losses)}


def step(model: Any, optimizer: Any, tokens: torch.Tensor) -> torch.Tensor:
    """One training step as in Megatron's schedules."""
    from megatron.core.distributed import finalize_model_grads

    model.zero_grad_buffer()
    optimizer.zero_grad()
    loss = compute_loss(model, tokens)
    loss.backward()
    finalize_model_grads([model])
    optimizer.step()
    return loss.detach()


def resume(*, first_on: bool, second_on: bool, folder: str) -> Named:
    """Train, save, go on; then resume with another choice of features and another sharding.

    On two ranks: two tensor-parallel ranks save, two data-parallel ones load.

    Returns:
        The losses after saving, of the run that went on and of the one that resumed.
    """
    from megatron.core import dist_checkpointing

    path = Path(folder) / f"{first_on}-{second_on}"
    batches = make_batches(4)
    _restart(tensor_parallel=2)
    model, optimizer = wrap_for_training(make_model(torch.float32, on=first_on), distributed=False)
    for tokens in batches[:2]:
        step(model, optimizer, tokens)
    path.mkdir(parents=True, exist_ok=True)
    torch.distributed.barrier()
    dist_checkpointing.save(_shard(model, optimizer), str(path))
    went_on = [step(model, optimizer, tokens) for tokens in batches[2:]]

    _restart(tensor_parallel=1)
    model, optimizer = wrap_for_training(
        make_model(torch.float32, on=second_on, seed=12), distributed=False
    )
    loaded = dist_checkpointing.load(_shard(model, optimizer, is_loading=True), str(path))
    model.module.load_state_dict(loaded["model"])
    optimizer.load_state_dict(loaded["optimizer"])
    resumed = [step(model, optimizer, tokens) for tokens in batches[2:]]
    return {"went on": torch.stack(went_on), "resumed": torch.stack(resumed)}


def _shard(model: Any, optimizer: Any, *, is_loading: bool = False) -> dict[str, Any]:
    from megatron.core import parallel_state

    metadata = {"dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True)}
    weights = call(model.module.sharded_state_dict, metadata=metadata)
    keywords: dict[str, Any] = {
        "model_sharded_state_dict": weights,
        "is_loading": is_loading,
        "metadata": metadata,
    }
    return {"model": weights, "optimizer": call(optimizer.sharded_state_dict, **keywords)}


def _restart(*, tensor_parallel: int) -> None:
    from megatron.core import parallel_state

    torch.distributed.barrier()
    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=tensor_parallel)
