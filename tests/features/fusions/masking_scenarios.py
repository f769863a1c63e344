"""Scenarios of the rewrites that fill masked entries: losses, embeddings and a GPT."""

from typing import Any

import torch

from features.parts import (
    Named,
    call,
    make_config,
    make_gpt,
    make_groups,
    run_backward,
    run_gpt_step,
)

LEVEL = 2  # takes both rewrites


def make_masking_config(dtype: torch.dtype, *, fused: bool = False, **changes: Any) -> Any:
    """A config; the rewrites' level only where it is asked for."""
    if fused:
        changes["optimization_level"] = LEVEL
    return make_config(dtype, **changes)


def run_gpt(dtype: torch.dtype, **changes: Any) -> Named:
    """A GPT of 64 words, or this rank's part of them: losses and every gradient."""
    return run_gpt_step(make_gpt(make_masking_config(dtype, **changes), parallel_output=True))


def run_loss(dtype: torch.dtype, *, smoothing: float = 0.0, infinite: bool = False,
             **changes: Any) -> Named:  # fmt: skip
    """The loss of logits, after the model that chooses was built; the first word may be -inf."""
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import vocab_parallel_cross_entropy

    make_gpt(make_masking_config(dtype, **changes))
    ranks = parallel_state.get_tensor_model_parallel_world_size()
    values = torch.randn(5, 2, 64 // ranks, device="cuda", dtype=dtype)
    if infinite:
        values[..., 0] = -torch.inf
    logits = values.requires_grad_()
    targets = torch.randint(1, 32, (5, 2), device="cuda")
    losses = vocab_parallel_cross_entropy(logits * 1, targets, smoothing)
    return run_backward(None, losses, logits=logits)


def run_embedding(dtype: torch.dtype, **changes: Any) -> Named:
    """The embedding alone, with words of every rank."""
    from megatron.core.tensor_parallel import VocabParallelEmbedding

    config = make_masking_config(dtype, **changes)
    keywords = {"num_embeddings": 64, "embedding_dim": 8, "init_method": torch.nn.init.normal_}
    groups = make_groups()
    tp_group = None if groups is None else groups.tp
    module = call(VocabParallelEmbedding, **keywords, config=config, tp_group=tp_group)
    words = torch.randint(0, 64, (2, 13), device="cuda")
    return run_backward(module, module(words))


def count_index_puts(dtype: torch.dtype, **changes: Any) -> Named:
    """Assignments through an index in a forward pass of a GPT."""
    from features.measure_scenarios import CountLaunches

    model = make_gpt(make_masking_config(dtype, **changes))
    with CountLaunches() as launches, torch.no_grad():
        tokens = torch.randint(0, 64, (2, 13), device="cuda")
        positions = torch.arange(13, device="cuda").expand(2, 13)
        mask = torch.ones(13, 13, dtype=torch.bool, device="cuda").triu(1).expand(2, 1, 13, 13)
        model(tokens, positions, mask, labels=tokens)
    found = sum(n for name, n in launches.counts.items() if "index_put" in name)
    return {"index_puts": torch.tensor(found)}
