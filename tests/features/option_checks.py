"""What is checked of options inside a patched tree, without an NPU."""

import sys
from collections.abc import Callable
from typing import Any

SMALL: dict[str, Any] = {"num_layers": 2, "hidden_size": 16, "num_attention_heads": 2}


def find_unrefused_configs() -> list[str]:
    """Configs that should be a ValueError that says why, and are not."""
    from megatron.core.transformer.enums import AttnBackend
    from megatron.core.transformer.transformer_config import (
        MLATransformerConfig,
        TransformerConfig,
    )

    flash = {"use_flash_attn": True}
    rope = {"use_fused_rotary_pos_emb": True}
    permute = {
        "use_fused_moe_token_permute_and_unpermute": True,
        "num_moe_experts": 4,
        "add_bias_linear": False,
        "moe_token_dispatcher_type": "alltoall",
    }
    bad: list[tuple[str, dict[str, Any]]] = [
        ("attention_backend", {**flash, "attention_backend": AttnBackend.local}),
        ("attention_backend", {**flash, "attention_backend": AttnBackend.unfused}),
        ("--sparse-mode", {"sparse_mode": 2}),
        ("--sparse-mode", {**flash, "sparse_mode": 1}),
        ("window_size", {**flash, "sparse_mode": 4, "window_size": (4, 0)}),
        ("--pre-tockens", {**flash, "pre_tockens": 128}),
        ("--next-tockens", {**flash, "sparse_mode": 2, "next_tockens": 1}),
        ("--pre-tockens", {**flash, "sparse_mode": 4, "pre_tockens": -1}),
        *find_biased(AttnBackend, MLATransformerConfig),
        ("normalization", {"use_fused_rmsnorm": True}),
        (
            "memory_efficient_layer_norm",
            {
                "use_fused_rmsnorm": True,
                "normalization": "RMSNorm",
                "memory_efficient_layer_norm": True,
            },
        ),
        ("mrope_section", {**rope, "rotary_interleaved": True, "mrope_section": [2, 1, 1]}),
        ("moe_token_dispatcher_type", {**permute, "moe_token_dispatcher_type": "allgather"}),
        ("moe_router_dtype", {**permute, "moe_router_dtype": "fp64"}),
        ("moe_expert_capacity_factor", {**permute, "moe_expert_capacity_factor": 1.5}),
        ("apply_rope_fusion", {**rope, "apply_rope_fusion": True, "kind": MLATransformerConfig}),
    ]
    problems = []
    for culprit, changes in bad:
        kind = changes.pop("kind", TransformerConfig)
        try:
            kind(**SMALL, **changes)
        except ValueError as error:
            if culprit not in str(error):
                problems.append(f"{changes}: {error}")
        else:
            problems.append(f"{changes}: accepted")
    return problems


def find_biased(backends: Any, latent: Any) -> list[tuple[str, dict[str, Any]]]:
    """Bad configs of the second version of attention, and of ALiBi."""
    alibi = {"alibi_fusion_attn_type": 2}
    return [
        ("attention_backend", {"use_fusion_attn_v2": True, "attention_backend": backends.local}),
        ("context_parallel_size", {"use_fusion_attn_v2": True, "context_parallel_size": 2}),
        ("attention_backend", {**alibi, "attention_backend": backends.unfused}),
        ("context_parallel_size", {**alibi, "context_parallel_size": 2}),
        ("multi_latent_attention", {**alibi, "kind": latent}),
        ("--alibi-fusion-attn-type", {"alibi_fusion_attn_type": 1}),
        ("alibi_fusion_attn_type", {"alibi_diagonal_opposite": True}),
        ("--square-alibi-mask", {**alibi, "square_alibi_mask": True}),
        ("--fill-neg-inf", {**alibi, "fill_neg_inf": True}),
        ("reset_attention_mask", {"fix_sub_seq_length": 8}),
        ("--fix-sub-seq-length", {"reset_attention_mask": True, "fix_sub_seq_length": 0}),
    ]


def build_without_npu() -> list[str]:
    """Configs are accepted and no feature is imported for them; what building modules says."""
    import torch
    from megatron.core.models.common.embeddings.rope_utils import apply_rotary_pos_emb
    from megatron.core.transformer.dot_product_attention import DotProductAttention
    from megatron.core.transformer.enums import AttnMaskType
    from megatron.core.transformer.torch_norm import WrappedTorchNorm
    from megatron.core.transformer.transformer_config import TransformerConfig

    options = {
        "use_flash_attn": True,
        "use_fused_rmsnorm": True,
        "use_fused_rotary_pos_emb": True,
        "apply_rope_fusion": True,  # which Megatron's scripts set, and which needs nothing more
    }
    config = TransformerConfig(**SMALL, normalization="RMSNorm", **options)
    config.__post_init__()
    feature = ("mindspeed.core.attention.flash", "mindspeed.core.fusions.rms_norm",
               "mindspeed.core.fusions.rotary_pos_embedding", "torch_npu")  # fmt: skip
    assert not [name for name in feature if name in sys.modules]
    said = []
    builders: tuple[Callable[[], Any], ...] = (
        lambda: DotProductAttention(config, 1, AttnMaskType.causal, "self"),
        lambda: WrappedTorchNorm(config, 16),
        lambda: apply_rotary_pos_emb(
            torch.ones(3, 1, 2, 8), torch.ones(3, 1, 1, 8), config, **_find_group()
        ),
    )
    for build in builders:
        try:
            build()
        except RuntimeError as error:
            said.append(str(error))
        else:
            said.append("built")
    return said


def _find_group() -> dict[str, Any]:
    """Core 0.14 on asks parallel_state for a group unless it is given one."""
    import inspect

    from megatron.core.models.common.embeddings.rope_utils import apply_rotary_pos_emb

    known = inspect.signature(apply_rotary_pos_emb).parameters
    return {"cp_group": object()} if "cp_group" in known else {}


FLAGS = ("--use-flash-attn", "--use-fused-rmsnorm", "--use-fused-rotary-pos-emb")


def parse_flags(flags: list[str]) -> list[bool | int]:
    """What Megatron's own parser makes of the flags; a second definition would raise."""
    import argparse

    from megatron.training import arguments

    parser = argparse.ArgumentParser(allow_abbrev=False)
    arguments.add_megatron_arguments(parser)
    args = parser.parse_args([*flags, "--num-layers", "2", "--hidden-size", "16"])
    fields = [flag[2:].replace("-", "_") for flag in FLAGS]
    return [*(bool(getattr(args, field)) for field in fields), int(args.sparse_mode)]


def parse_position_embedding(kind: str) -> str:
    """A value of --position-embedding-type that Megatron's own parser takes."""
    import argparse

    from megatron.training import arguments

    parser = argparse.ArgumentParser(allow_abbrev=False)
    arguments.add_megatron_arguments(parser)
    flags = ["--position-embedding-type", kind, "--num-layers", "2"]
    return str(parser.parse_args(flags).position_embedding_type)
