"""A scenario: the GPTModel of `gpt_training`, sharded over ranks, with Megatron's own optimizer."""

from typing import Any

import torch

from sim.gpt_training import build_model


def shard_like(parameter: torch.Tensor, full: torch.Tensor, *, gated: bool) -> torch.Tensor:
    """This rank's part of a full weight, along the dimension that Megatron partitions.

    Args:
        parameter: the sharded parameter; unsharded ones take the whole.
        full: the weight of the model on one rank.
        gated: whether two matrices (gate and up) are stacked along dimension 0.
    """
    from megatron.core import parallel_state

    size = parallel_state.get_tensor_model_parallel_world_size()
    rank = parallel_state.get_tensor_model_parallel_rank()
    if not getattr(parameter, "tensor_model_parallel", False) or size == 1:
        return full
    dim: int = parameter.partition_dim  # type: ignore[attr-defined]
    parts = full.chunk(2, 0) if gated else (full,)
    return torch.cat([part.chunk(size, dim)[rank] for part in parts], 0 if gated else dim)


def full_weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The weights of the one-rank model by name: the numbers that `build_model` draws."""
    from megatron.core import parallel_state

    size = parallel_state.get_tensor_model_parallel_world_size()
    generator = torch.Generator("cpu")
    generator.manual_seed(1)
    weights = {}
    for name, parameter in model.named_parameters():
        shape = list(parameter.shape)
        if getattr(parameter, "tensor_model_parallel", False):
            shape[parameter.partition_dim] *= size  # type: ignore[attr-defined]
        values = torch.randn(shape, generator=generator) * 0.1
        weights[name] = values + (1.0 if parameter.dim() == 1 else 0.0)
    return weights


def train(*, steps: int = 5, distributed_optimizer: bool = False) -> dict[str, torch.Tensor]:
    """Five AdamW steps on this rank's share of a batch of two.

    All ranks take part. Tensor-parallel ranks share a model, data-parallel ones split the batch.

    Returns:
        `losses`: [steps], averaged over the data-parallel ranks, the same on every rank.
    """
    from megatron.core import parallel_state
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    sizes = {"tensor_model_parallel_size": parallel_state.get_tensor_model_parallel_world_size()}
    model = build_model("npu", sizes)
    with torch.no_grad():
        for name, full in full_weights(model).items():
            parameter = model.get_parameter(name)
            parameter.copy_(shard_like(parameter, full, gated="linear_fc1" in name))
    ddp = DistributedDataParallelConfig(use_distributed_optimizer=distributed_optimizer)
    wrapped = DistributedDataParallel(model.config, ddp, model)
    settings: dict[str, Any] = {"lr": 0.01, "min_lr": 0.01, "weight_decay": 0.0, "adam_eps": 1e-3}
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam",
            clip_grad=0.0,
            use_distributed_optimizer=distributed_optimizer,
            **settings,
        ),
        [wrapped],
    )
    generator = torch.Generator("cpu")
    generator.manual_seed(2)
    tokens = torch.randint(0, 64, (2, 17), generator=generator)
    group = parallel_state.get_data_parallel_group()
    tokens = tokens.chunk(group.size(), 0)[group.rank()].cuda()
    positions = torch.arange(16).expand(len(tokens), 16).contiguous().cuda()
    mask = torch.ones(16, 16).tril().logical_not()[None, None].cuda()
    losses = []
    for _ in range(steps):
        wrapped.zero_grad_buffer()
        optimizer.zero_grad()
        inputs, labels = (t.contiguous() for t in (tokens[:, :-1], tokens[:, 1:]))
        loss = wrapped(inputs, positions, mask, labels=labels).mean()
        loss.backward()
        wrapped.finish_grad_sync()
        optimizer.step()
        shared = loss.detach().clone()
        torch.distributed.all_reduce(shared, group=group)
        losses.append(shared / group.size())
    return {"losses": torch.stack(losses)}
