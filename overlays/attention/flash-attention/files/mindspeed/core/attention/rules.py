"""Rules of the options of flash attention. They read a config only, on any machine."""

from collections.abc import Iterator
from typing import Any


def check_sparse_mode(config: Any) -> Iterator[tuple[str, str]]:
    """Two settings that both say which scores to keep.

    Yields:
        The rule that is broken, and what to change.
    """
    if config.window_size is not None:
        yield (
            f"window_size {config.window_size} says which scores to keep as well",
            "set sparse_mode=0 or window_size=None",
        )
