"""Training with a chosen Adam, and its checkpoints in every way that the optimizer shards them."""

import copy
import inspect
from pathlib import Path
from typing import Any

import torch

from features.parts import Named, call
from features.training_scenarios import make_batches, make_model, step

Choice = str | None


def restart(*, tensor_parallel: int) -> None:
    """Other process groups for the same ranks."""
    from megatron.core import parallel_state

    torch.distributed.barrier()
    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=tensor_parallel)


def build(selection: Choice, *, distributed: bool, seed: int = 11,
          dtype: torch.dtype = torch.bfloat16) -> tuple[Any, Any]:  # fmt: skip
    """Megatron's DDP around a small GPT, and the optimizer; `selection` only where asked for."""
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    model = make_model(dtype, on=False, seed=seed)
    settings = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True, use_distributed_optimizer=distributed
    )
    wrapped = DistributedDataParallel(model.config, settings, model)
    more = {} if selection is None else {"optimizer_selection": selection}
    options = OptimizerConfig(
        optimizer="adam",
        lr=0.005,
        weight_decay=0.01,
        bf16=dtype is torch.bfloat16,
        params_dtype=dtype,
        use_distributed_optimizer=distributed,
        **more,
    )
    return wrapped, get_megatron_optimizer(options, [wrapped])


def train(selection: Choice, *, distributed: bool, dtype: torch.dtype) -> Named:
    """The losses of ten steps and the kind of optimizer underneath."""
    model, optimizer = build(selection, distributed=distributed, dtype=dtype)
    rank = torch.distributed.get_rank()
    losses = [step(model, optimizer, tokens) for tokens in make_batches(10, rank=rank)]
    return {"losses": torch.stack(losses), "weights": _flatten(model)}


def count_launches(selection: Choice) -> Named:
    """Launches of the fused operator and of all operators in a step of the optimizer."""
    from features.measure_scenarios import CountLaunches

    model, optimizer = build(selection, distributed=False)
    for tokens in make_batches(2):
        step(model, optimizer, tokens)
    with CountLaunches() as launches:
        optimizer.step()
    fused = sum(n for name, n in launches.counts.items() if "_fused_adam" in name)
    tensors = len(list(model.parameters()))
    found = {"fused": fused, "all": launches.counts.total(), "parameters": tensors}
    return {name: torch.tensor(n) for name, n in found.items()}


def resume(
    selection: Choice, *, sharding: str, folder: str, second: Choice = None, reshard: bool = False
) -> Named:
    """Train, save, go on; a fresh optimizer loads and goes on: the losses of both.

    Args:
        selection: the Adam that saves.
        sharding: of the distributed optimizer's state; "file" for its separate file.
        folder: of checkpoints.
        second: the Adam that loads; the same by default.
        reshard: two tensor-parallel ranks save, two data-parallel ones load.
    """
    from megatron.core import dist_checkpointing

    path = Path(folder) / f"{selection}-{second}-{sharding}-{reshard}"
    path.mkdir(parents=True, exist_ok=True)
    batches = make_batches(5)
    restart(tensor_parallel=2 if reshard else 1)
    model, optimizer = build(selection, distributed=True)
    for tokens in batches[:2]:
        step(model, optimizer, tokens)
    torch.distributed.barrier()
    file = str(path / "parameters.pt")
    if sharding == "file":
        named = model.module.state_dict()
        weights = {k: v.clone() for k, v in named.items() if isinstance(v, torch.Tensor)}
        state = copy.deepcopy(optimizer.state_dict())
        optimizer.save_parameter_state(file)
    else:
        dist_checkpointing.save(_shard(model, optimizer, sharding), str(path))
    went_on = [step(model, optimizer, tokens) for tokens in batches[2:]]

    restart(tensor_parallel=1)
    model, optimizer = build(second or selection, distributed=True, seed=12)
    if sharding == "file":
        model.module.load_state_dict(weights, strict=False)
        optimizer.load_state_dict(state)
        optimizer.load_parameter_state(file)
    else:
        wanted = _shard(model, optimizer, sharding, is_loading=True)
        loaded = dist_checkpointing.load(wanted, str(path))
        model.module.load_state_dict(loaded["model"])
        optimizer.load_state_dict(loaded["optimizer"])
    resumed = [step(model, optimizer, tokens) for tokens in batches[2:]]
    return {"went on": torch.stack(went_on), "resumed": torch.stack(resumed)}


def _shard(model: Any, optimizer: Any, sharding: str, *, is_loading: bool = False) -> Any:
    from megatron.core import parallel_state
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

    metadata: dict[str, Any] = {
        "dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True),
        "distrib_optim_sharding_type": sharding,
    }
    weights = call(model.module.sharded_state_dict, metadata=metadata)
    known = inspect.signature(DistributedOptimizer.sharded_state_dict).parameters
    more = {"metadata": metadata} if "metadata" in known else {"sharding_type": sharding}
    state = optimizer.sharded_state_dict(weights, is_loading=is_loading, **more)
    return {"model": weights, "optimizer": state}


def _flatten(model: Any) -> torch.Tensor:
    return torch.cat([p.detach().float().flatten() for p in model.parameters()])
