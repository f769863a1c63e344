"""Rules of use_fused_moe_token_permute_and_unpermute. They read a config only, on any machine."""

from collections.abc import Iterator
from typing import Any


def check_permutation(config: Any) -> Iterator[tuple[str, str]]:
    """What the operators cannot do and `config` asks for.

    Yields:
        The rule that is broken, and what to change.
    """
    if (
        config.moe_expert_capacity_factor is not None
        and not config.moe_pad_expert_input_to_capacity
    ):
        yield (
            "the operators need as many experts for each token, and tokens are dropped by "
            f"moe_expert_capacity_factor={config.moe_expert_capacity_factor}",
            "set moe_pad_expert_input_to_capacity=True",
        )
    if not config.moe_permute_fusion:
        yield (
            "the option was set after the config was made",
            "set it in the constructor, or moe_permute_fusion=True too",
        )
