"""Rules of the options of context parallelism. They read a config only, on any machine."""

from collections.abc import Iterator
from typing import Any

from mindspeed.core.context_parallel.choice import choose


def check_context_parallel(config: Any) -> Iterator[tuple[str, str]]:
    """Settings that contradict each other or cannot be, for any layer.

    Yields:
        The rule that is broken, and what to change.
    """
    if config.context_parallel_size == 1:
        return
    lists = isinstance(config.cp_comm_type, (list, tuple))
    seen = set()
    for layer in range(1, (config.num_layers if lists else 1) + 1):
        try:
            choose(config, layer)
        except ValueError as error:
            if str(error) not in seen:
                seen.add(str(error))
                yield str(error), "change one of these settings"
