"""What `test_grouped_gemm` runs on a tree."""

from typing import Any

import torch

_SIZES = ([3, 0, 5], [0, 0, 8], [8, 0, 0])  # rows of each of three experts


def multiply_in_turn(
    a: torch.Tensor, b: torch.Tensor, batch_sizes: torch.Tensor, trans_b: bool = False
) -> torch.Tensor:
    """The product of `grouped_gemm`, one expert after another."""
    rows = a.split(batch_sizes.tolist())
    matrices = b.transpose(1, 2) if trans_b else b
    return torch.cat([part @ matrix for part, matrix in zip(rows, matrices, strict=True)])


def multiply(*, dtype: torch.dtype, fused: bool) -> dict[str, torch.Tensor]:
    """Products and both gradients, with and without transposition, with empty experts."""
    from megatron.core.transformer.moe import grouped_gemm_util

    product: Any = grouped_gemm_util.ops.gmm if fused else multiply_in_turn
    results = {}
    for trans_b in (False, True):
        for sizes in _SIZES:
            a = torch.randn(8, 6, device="cuda", dtype=dtype, requires_grad=True)
            shape = (3, 10, 6) if trans_b else (3, 6, 10)
            b = torch.randn(shape, device="cuda", dtype=dtype, requires_grad=True)
            y = product(a, b, torch.tensor(sizes), trans_b=trans_b)
            y.backward(torch.randn_like(y))
            assert a.grad is not None
            assert b.grad is not None
            for name, value in {"y": y, "da": a.grad, "db": b.grad}.items():
                results[f"{name} {sizes} {trans_b}"] = value
    return results


def train_experts(*, fused: bool) -> dict[str, torch.Tensor]:
    """A GPT model with GroupedMLP: loss and every gradient, in bf16.

    One layer: a rounding more or less in its experts must not route the next one's tokens.
    """
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.module import Float16Module
    from megatron.core.transformer.moe import grouped_gemm_util

    if not fused:
        grouped_gemm_util.ops.gmm = multiply_in_turn
    config = TransformerConfig(
        num_layers=1,
        hidden_size=32,
        num_attention_heads=4,
        ffn_hidden_size=48,
        num_moe_experts=4,
        moe_router_topk=2,
        moe_grouped_gemm=True,
        moe_token_dispatcher_type="alltoall",
        moe_aux_loss_coeff=0.01,
        add_bias_linear=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        gradient_accumulation_fusion=False,
        bf16=True,  # core 0.16 takes nothing else
        params_dtype=torch.bfloat16,
    )
    spec = get_gpt_layer_local_spec(num_experts=4, moe_grouped_gemm=True)
    inner = GPTModel(config, spec, vocab_size=64, max_sequence_length=16).cuda()
    model = Float16Module(config, inner)
    tokens = torch.randint(0, 64, (2, 16), device="cuda")
    mask = torch.ones(16, 16, device="cuda").tril().logical_not()[None, None]
    positions = torch.arange(16, device="cuda").expand(2, 16)
    loss = model(tokens, positions, mask, labels=tokens).mean()
    loss.backward()
    named = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    assert sum(name.endswith(("experts.weight1", "experts.weight2")) for name in named) == 2
    return {"loss": loss, **named}


def mix_dtypes() -> dict[str, torch.Tensor]:
    """Tokens and weights of different types."""
    from megatron.core.transformer.moe import grouped_gemm_util

    a, b = torch.ones(2, 3, device="cuda"), torch.ones(1, 3, 4, device="cuda").bfloat16()
    grouped_gemm_util.ops.gmm(a, b, torch.tensor([2]))
    return {}


def is_available() -> bool:
    """What Megatron says of its grouped product."""
    from megatron.core.transformer.moe import grouped_gemm_util

    return bool(grouped_gemm_util.grouped_gemm_is_available())
