"""What is checked of the options of flash attention inside a patched tree, without an NPU."""

import sys
from typing import Any

SMALL: dict[str, Any] = {"num_layers": 2, "hidden_size": 16, "num_attention_heads": 2}


def find_unrefused_configs() -> list[str]:
    """Configs that should be a ValueError naming option and value, and are not."""
    from megatron.core.transformer.enums import AttnBackend
    from megatron.core.transformer.transformer_config import TransformerConfig

    bad: list[tuple[str, dict[str, Any]]] = [
        ("attention_backend", {"use_flash_attn": True, "attention_backend": AttnBackend.local}),
        ("attention_backend", {"use_flash_attn": True, "attention_backend": AttnBackend.unfused}),
        ("--sparse-mode", {"sparse_mode": 2}),
        ("--sparse-mode", {"use_flash_attn": True, "sparse_mode": 1}),
        ("window_size", {"use_flash_attn": True, "sparse_mode": 4, "window_size": (4, 0)}),
        ("--pre-tockens", {"use_flash_attn": True, "pre_tockens": 128}),
        ("--next-tockens", {"use_flash_attn": True, "sparse_mode": 2, "next_tockens": 1}),
        ("--pre-tockens", {"use_flash_attn": True, "sparse_mode": 4, "pre_tockens": -1}),
    ]
    problems = []
    for culprit, changes in bad:
        try:
            TransformerConfig(**SMALL, **changes)
        except ValueError as error:
            if culprit not in str(error):
                problems.append(f"{changes}: {error}")
        else:
            problems.append(f"{changes}: accepted")
    return problems


def build_attention_without_npu() -> str:
    """The config is accepted and nothing of the feature imported; what building attention says."""
    from megatron.core.transformer.dot_product_attention import DotProductAttention
    from megatron.core.transformer.enums import AttnMaskType
    from megatron.core.transformer.transformer_config import TransformerConfig

    config = TransformerConfig(**SMALL, use_flash_attn=True)
    config.__post_init__()
    assert "mindspeed.core.attention.flash" not in sys.modules
    assert "torch_npu" not in sys.modules
    try:
        DotProductAttention(config, 1, AttnMaskType.causal, "self")
    except RuntimeError as error:
        return f"RuntimeError: {error}"
    return "built"


def parse_flags(flags: list[str]) -> tuple[bool, int]:
    """What Megatron's own parser makes of the flags; a second definition would raise."""
    import argparse

    from megatron.training import arguments

    parser = argparse.ArgumentParser(allow_abbrev=False)
    arguments.add_megatron_arguments(parser)
    args = parser.parse_args([*flags, "--num-layers", "2", "--hidden-size", "16"])
    return bool(args.use_flash_attn), int(args.sparse_mode)
