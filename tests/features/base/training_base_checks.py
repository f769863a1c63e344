"""What `test_training_base` runs on a tree: upstream's own code, on the device."""

import io
import zipfile
from typing import Any

import torch


def make_trained(*, seed: int, sharded: bool) -> tuple[Any, Any]:
    """A small bf16 MoE model in DDP, and Megatron's Adam with gradient clipping."""
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.module import Float16Module

    torch.manual_seed(seed)
    config = TransformerConfig(
        num_layers=2,
        hidden_size=32,
        num_attention_heads=4,
        ffn_hidden_size=48,
        num_moe_experts=4,
        moe_router_topk=2,
        moe_token_dispatcher_type="alltoall",
        moe_expert_capacity_factor=1.0,
        moe_aux_loss_coeff=0.01,
        add_bias_linear=False,
        recompute_granularity="full",
        recompute_method="uniform",
        recompute_num_layers=1,
        gradient_accumulation_fusion=False,
        bf16=True,
        params_dtype=torch.bfloat16,
    )
    spec = get_gpt_layer_local_spec(num_experts=4, moe_grouped_gemm=False)
    model = GPTModel(config, spec, vocab_size=64, max_sequence_length=16).cuda()
    ddp = DistributedDataParallelConfig(
        use_distributed_optimizer=sharded, grad_reduce_in_fp32=True, overlap_grad_reduce=True
    )
    wrapped = DistributedDataParallel(config, ddp, Float16Module(config, model))
    settings = OptimizerConfig(
        optimizer="adam", lr=0.01, min_lr=0.01, bf16=True, use_distributed_optimizer=sharded,
        params_dtype=torch.bfloat16, clip_grad=0.1,
    )  # fmt: skip
    return wrapped, get_megatron_optimizer(settings, [wrapped])


def take_steps(model: Any, optimizer: Any, *, first: int) -> list[torch.Tensor]:
    """Two steps; the loss and the norm of the gradient of each."""
    seen = []
    for step in (first, first + 1):
        torch.cuda.manual_seed(step)
        generator = torch.Generator("cpu").manual_seed(step)
        tokens = torch.randint(0, 64, (2, 16), generator=generator).cuda()
        positions = torch.arange(16, device="cuda").expand(2, 16)
        mask = torch.ones(16, 16, device="cuda").tril().logical_not()[None, None]
        model.zero_grad_buffer()
        optimizer.zero_grad()
        loss = model(tokens, positions, mask, labels=tokens).mean()
        loss.backward()
        model.finish_grad_sync()
        updated, norm, _ = optimizer.step()
        assert updated
        seen += [loss.detach(), torch.tensor(float(norm))]
    return seen


def train() -> dict[str, torch.Tensor]:
    """Four steps with the states on each rank, and with the states sharded."""
    from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

    results = {}
    for sharded in (False, True):
        model_parallel_cuda_manual_seed(7)
        model, optimizer = make_trained(seed=1, sharded=sharded)
        seen = [v for first in (0, 2) for v in take_steps(model, optimizer, first=first)]
        results["sharded" if sharded else "whole"] = torch.stack([v.cpu() for v in seen])
    return results


def resume() -> dict[str, torch.Tensor]:
    """Steps three and four, as they follow, and as they follow a load into another model."""
    from megatron.core.tensor_parallel import get_cuda_rng_tracker

    model, optimizer = make_trained(seed=1, sharded=False)
    take_steps(model, optimizer, first=0)
    tracker = get_cuda_rng_tracker()
    saved = io.BytesIO()
    torch.save([model.state_dict(), optimizer.state_dict(), tracker.get_states()], saved)
    straight = take_steps(model, optimizer, first=2)
    other, fresh = make_trained(seed=2, sharded=False)
    saved.seek(0)
    weights, states, generators = torch.load(saved, weights_only=False, map_location="cpu")
    tracker.set_states(generators)
    other.load_state_dict(weights)
    fresh.load_state_dict(states)
    resumed = take_steps(other, fresh, first=2)
    return {
        "straight": torch.stack([v.cpu() for v in straight]),
        "resumed": torch.stack([v.cpu() for v in resumed]),
    }


def load_from_cuda() -> dict[str, torch.Tensor]:
    """A file that was written on a GPU, loaded as it says and onto the CPU."""
    written, changed = io.BytesIO(), io.BytesIO()
    torch.save(torch.arange(3.0), written)
    with zipfile.ZipFile(written) as source, zipfile.ZipFile(changed, "w") as target:
        for name in source.namelist():
            # The location is a pickled string: its length, then its letters.
            cpu, cuda = b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0"
            target.writestr(name, source.read(name).replace(cpu, cuda))
    loaded = {}
    for place in (None, "cpu"):
        changed.seek(0)
        loaded[str(place)] = torch.load(changed, map_location=place)
    assert loaded["None"].device.type == "npu"
    assert loaded["cpu"].device.type == "cpu"
    return loaded


def use_random_states() -> dict[str, torch.Tensor]:
    """Draws before and after a state is set back, in each form that Megatron uses."""
    from megatron.core.tensor_parallel import checkpoint, random

    draws = {}
    for device in (-1, 0, "cuda", "cuda:0"):
        state = random._get_cuda_rng_state()
        first = torch.rand(4, device="cuda")
        random._set_cuda_rng_state(state, device=device)
        draws[str(device)] = torch.stack([first, torch.rand(4, device="cuda")])
    graph_safe = random._get_cuda_rng_state(clone=True, graph_safe=True)
    first = torch.rand(4, device="cuda")
    random._set_cuda_rng_state(graph_safe, graph_safe=True)
    draws["graph safe"] = torch.stack([first, torch.rand(4, device="cuda")])
    x = torch.ones(64, device="cuda", requires_grad=True)
    y = checkpoint(lambda t: torch.nn.functional.dropout(t, 0.5), False, x)
    y.sum().backward()
    assert x.grad is not None
    draws["recomputed dropout"] = torch.stack([y.detach(), x.grad])
    return draws


def measure_gradients() -> dict[str, torch.Tensor]:
    """Norms, clipping and counting, without apex and TransformerEngine."""
    from megatron.core.optimizer import clip_grads

    world = torch.distributed.group.WORLD
    gradients = [torch.full((3,), 2.0, device="cuda"), torch.full((4,), -1.0, device="cuda")]
    norms = [
        clip_grads.get_grad_norm_fp32(g, norm_type=kind, grad_stats_parallel_group=world)
        for g, kind in ((gradients, 2), (gradients, 3), (gradients, float("inf")), ([], 2))
    ]
    parameter = torch.nn.Parameter(torch.ones(4, device="cuda"))
    parameter.grad = torch.tensor([3.0, 0.0, 4.0, 0.0], device="cuda")
    zeros = clip_grads.count_zeros_fp32([parameter], grad_stats_parallel_group=world)
    clip_grads.clip_grad_by_total_norm_fp32([parameter], 1.0, 5.0)
    return {
        "norms": torch.tensor([float(n) for n in norms]),
        "zeros": torch.tensor(float(zeros)),
        "clipped": parameter.grad,
    }
