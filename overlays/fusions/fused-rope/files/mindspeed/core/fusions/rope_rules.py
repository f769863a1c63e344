"""Rules of use_fused_rotary_pos_emb. They read a config only, on any machine."""

from collections.abc import Iterator
from typing import Any


def check_fused_rope(config: Any) -> Iterator[tuple[str, str]]:
    """What the operator cannot do and `config` asks for.

    Yields:
        The rule that is broken, and what to change.
    """
    if config.multi_latent_attention and config.apply_rope_fusion:
        yield (
            "apply_rope_fusion of multi-latent attention is another, fused kernel",
            "set apply_rope_fusion=False (--no-rope-fusion)",
        )
    if getattr(config, "mrope_section", None) is not None and config.rotary_interleaved:
        yield (
            "the operator rotates interleaved pairs only where all sequences share positions, "
            f"mrope_section is {config.mrope_section}",
            "set rotary_interleaved=False",
        )
