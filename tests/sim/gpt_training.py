"""Trains a small Megatron GPTModel: `gpt_training.py TREE cpu|npu STORE [OPTIONS]`; prints losses.

The tree is an unmodified Megatron. On the device nothing but `transfer_to_npu` is added; on the CPU
the few `torch.cuda` calls that a model makes without being asked are answered here. Triton is
absent: the modules that import it without a guard get a stand-in.
"""

import contextlib
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from harness.triton_stub import find_unguarded, serve_triton


def answer_cuda_calls_on_cpu() -> None:
    """Answer what Megatron asks `torch.cuda` for while a model is built and run on the CPU."""
    import torch

    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment, return-value]
    from megatron.core.tensor_parallel import random

    random.CudaRNGStatesTracker.fork = lambda self, name="": contextlib.nullcontext()


def build_model(device: str, options: dict[str, Any]) -> Any:
    """Return a two-layer GPTModel with seeded weights that do not depend on the device.

    Args:
        device: cpu or npu.
        options: fields of TransformerConfig.
    """
    import torch
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer import TransformerConfig

    config = TransformerConfig(
        **{"hidden_dropout": 0.0, "attention_dropout": 0.0, **options},
        num_layers=2,
        hidden_size=32,
        num_attention_heads=4,
        ffn_hidden_size=64,
        use_cpu_initialization=True,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        bias_activation_fusion=False,
        masked_softmax_fusion=False,
        bias_dropout_fusion=False,
        gradient_accumulation_fusion=False,
    )
    model = GPTModel(
        config=config,
        transformer_layer_spec=get_gpt_layer_local_spec(),
        vocab_size=64,
        max_sequence_length=16,
        position_embedding_type="rope",
    )
    generator = torch.Generator("cpu")
    generator.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            values = torch.randn(parameter.shape, generator=generator) * 0.1
            parameter.copy_(values + (1.0 if parameter.dim() == 1 else 0.0))
    return model if device == "cpu" else model.cuda()


def train(device: str, store: str, options: dict[str, Any], *, steps: int = 5) -> list[float]:
    """Return the loss of each AdamW step; `store` is a file that the one rank meets itself in."""
    import torch
    from megatron.core import parallel_state

    backend = "gloo" if device == "cpu" else "nccl"
    torch.distributed.init_process_group(
        backend, init_method=f"file://{store}", rank=0, world_size=1
    )
    parallel_state.initialize_model_parallel()
    if device == "npu":
        tensor_parallel = importlib.import_module("megatron.core.tensor_parallel")
        tensor_parallel.model_parallel_cuda_manual_seed(7)
    model = build_model(device, options)
    # A large eps: Adam's first step is the gradient's sign, which rounding decides near zero.
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-3, weight_decay=0.0)
    generator = torch.Generator("cpu")
    generator.manual_seed(2)
    tokens = torch.randint(0, 64, (2, 17), generator=generator)

    def place(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.cuda() if device == "npu" else tensor

    positions = torch.arange(16).expand(2, 16)
    mask = torch.ones(16, 16).tril().logical_not()[None, None]
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(
            place(tokens[:, :-1].contiguous()),
            place(positions.contiguous()),
            place(mask),
            labels=place(tokens[:, 1:].contiguous()),
        ).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    torch.distributed.destroy_process_group()
    return losses


def main() -> None:
    """Train and print a JSON list."""
    tree, device, store = sys.argv[1:4]
    options: dict[str, Any] = json.loads(sys.argv[4]) if len(sys.argv) > 4 else {}
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    sys.path.insert(0, tree)
    if device == "npu":
        import ascend_sim

        ascend_sim.install()
        importlib.import_module("torch_npu.contrib.transfer_to_npu")
    serve_triton(find_unguarded(Path(tree)))
    if device == "cpu":
        answer_cuda_calls_on_cpu()
    print(json.dumps(train(device, store, options)))


if __name__ == "__main__":
    main()
