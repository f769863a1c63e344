"""Rules of the options of ALiBi. They read a config only, on any machine."""

from collections.abc import Iterator
from typing import Any


def check_alibi(config: Any) -> Iterator[tuple[str, str]]:
    """Settings that say which keys count as well, or take the same place in the operator.

    Yields:
        The rule that is broken, and what to change.
    """
    if getattr(config, "softmax_type", "vanilla") != "vanilla":
        yield (
            f"softmax_type {config.softmax_type} has not been tried together with a bias",
            "set softmax_type=vanilla",
        )


def check_position_embedding(config: Any, kind: str) -> None:
    """A model's positions come from one source.

    Args:
        config: of the model.
        kind: its position_embedding_type.

    Raises:
        ValueError: alibi without a way to compute it, or beside other embeddings of positions.
    """
    chosen = config.alibi_fusion_attn_type
    if (kind == "alibi") == (chosen is not None):
        return
    if kind == "alibi":
        raise ValueError(
            "position_embedding_type='alibi' needs alibi_fusion_attn_type "
            "(--alibi-fusion-attn-type), 0 or 2: without it no position reaches the model"
        )
    raise ValueError(
        f"alibi_fusion_attn_type={chosen} needs position_embedding_type='alibi', not {kind!r}: "
        "positions would count twice"
    )
