"""Trains a small Megatron GPT on simulated devices until it is stopped; prints each step.

torchrun ... train_steps.py STEPS
"""

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer import TransformerConfig

TIMEOUT_S = 10
"""How long a collective waits for a host that is gone; Megatron's default is half an hour."""


def build_model() -> GPTModel:
    """One layer, tensor parallel over two ranks."""
    config = TransformerConfig(
        num_layers=1,
        hidden_size=16,
        num_attention_heads=2,
        tensor_model_parallel_size=2,
        use_cpu_initialization=True,
        bias_activation_fusion=False,
        masked_softmax_fusion=False,
        bias_dropout_fusion=False,
        gradient_accumulation_fusion=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
    )
    model = GPTModel(
        config=config,
        transformer_layer_spec=get_gpt_layer_local_spec(),
        vocab_size=32,
        max_sequence_length=8,
    )
    return model.cuda()


def main(steps: int) -> None:
    """Train, averaging gradients over the data-parallel ranks."""
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", timeout=timedelta(seconds=TIMEOUT_S))
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=2,
        distributed_timeout_minutes=TIMEOUT_S / 60,
    )
    tensor_parallel.model_parallel_cuda_manual_seed(1)
    torch.manual_seed(1)
    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    group = parallel_state.get_data_parallel_group()
    tokens = torch.arange(18).reshape(2, 9).remainder(32)
    positions = torch.arange(8).expand(2, 8).contiguous()
    mask = torch.ones(8, 8).tril().logical_not()[None, None]
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        inputs, labels = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        loss = model(inputs.cuda(), positions.cuda(), mask.cuda(), labels=labels.cuda()).mean()
        loss.backward()
        for parameter in model.parameters():
            # On hardware a watchdog ends the process when a peer is gone. The simulated device's
            # blocking call comes back as if nothing were wrong; its future tells.
            dist.all_reduce(parameter.grad, group=group, async_op=True).get_future().wait()
        optimizer.step()
        print(f"step {step} rank {dist.get_rank()} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
