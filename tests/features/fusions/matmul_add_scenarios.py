"""Scenarios in which weight gradients are accumulated in main_grad."""

from typing import Any

import pytest
import torch

from features.parts import (
    Named,
    call,
    count_operator,
    find_grad,
    make_config,
    make_gpt,
    make_random,
    run_gpt_step,
)

NUM_BATCHES = 2


def run_gpt(dtype: torch.dtype, *, fused: bool = False, **changes: Any) -> Named:
    """Main gradients, fp32, of a GPT in Megatron's DDP after two micro-batches."""
    model = _wrap(dtype, fused=fused, **changes)
    model.zero_grad_buffer()
    for _ in range(NUM_BATCHES):
        found = run_gpt_step(model)
    return found


def run_linears(dtype: torch.dtype, *, fused: bool = False) -> Named:
    """A column- and a row-parallel layer with sequence parallelism, after two micro-batches."""
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear

    changes = {"gradient_accumulation_fusion": True} if fused else {}
    config = make_config(dtype, sequence_parallel=True, **changes)
    group = parallel_state.get_tensor_model_parallel_group()
    rest = {"config": config, "init_method": torch.nn.init.normal_, "skip_bias_add": False}
    rest |= {"bias": True, "is_expert": False, "tp_group": group}
    up = call(ColumnParallelLinear, input_size=6, output_size=10, gather_output=False, **rest)
    down = call(RowParallelLinear, input_size=10, output_size=6, input_is_parallel=True, **rest)
    weights = {"up": up.weight, "down": down.weight}
    for weight in weights.values():
        weight.main_grad = torch.zeros_like(weight, dtype=torch.float32)
    named: Named = {}
    for batch in range(NUM_BATCHES):
        x = make_random(7, 3, 6, dtype=dtype)
        out = down(up(x)[0])[0]
        out.backward(torch.randn_like(out))
        named |= {f"out {batch}": out, f"grad x {batch}": find_grad(x)}
        for weight in weights.values():
            if not fused:
                weight.main_grad += weight.grad
            weight.grad = None
    return named | {f"main grad {name}": weight.main_grad for name, weight in weights.items()}


def count_calls(dtype: torch.dtype, *, fused: bool) -> Named:
    """How often the operator is called in one micro-batch, and the linear layers there are."""
    with count_operator("npu_grouped_matmul_add_") as calls:
        model = _wrap(dtype, fused=fused)
        run_gpt_step(model)
    matrices = [p for name, p in model.named_parameters() if "linear" in name or "output" in name]
    return {"calls": torch.tensor(len(calls)), "linears": torch.tensor(len(matrices))}


def add_directly(dtype: torch.dtype, *, grad_dtype: torch.dtype) -> Named:
    """The function by itself, on top of what is there, beside fp64; also with no token."""
    from mindspeed.core.fusions.matmul_add import add_weight_grad

    x, y = (torch.randn(7, n, device="cuda", dtype=dtype) for n in (5, 3))
    grad = torch.randn(3, 5, device="cuda", dtype=grad_dtype)
    want = grad.cpu().double() + y.cpu().double().T @ x.cpu().double()
    add_weight_grad(x, y, grad)
    add_weight_grad(x[:0], y[:0], grad)
    return {"grad": grad, "want": want.to(grad_dtype)}


def refuse_third_dtype() -> Named:
    """fp16 into bf16 raises."""
    from mindspeed.core.fusions.matmul_add import add_weight_grad

    x = torch.ones(2, 2, device="cuda", dtype=torch.float16)
    with pytest.raises(TypeError, match=r"main_grad is torch\.bfloat16"):
        add_weight_grad(x, x, x.bfloat16())
    return {}


def _wrap(dtype: torch.dtype, *, fused: bool, **changes: Any) -> Any:
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig

    if fused:
        changes["gradient_accumulation_fusion"] = True
    config = make_config(dtype, **changes)
    settings = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True, overlap_grad_reduce=False, use_distributed_optimizer=False
    )
    return DistributedDataParallel(config, settings, make_gpt(config))
