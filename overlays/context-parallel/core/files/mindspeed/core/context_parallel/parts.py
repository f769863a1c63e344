"""Parts of context parallelism that overlays of their own bring."""

import importlib
from functools import cache
from typing import Any


@cache
def load_part(module: str, name: str, *, overlay: str) -> Any:
    """A function of a module beside this one.

    Args:
        module: its name here.
        name: of the function.
        overlay: that brings it, in the family context-parallel.

    Raises:
        ValueError: the overlay is not in this build.
    """
    full = f"{__package__}.{module}"
    try:
        return getattr(importlib.import_module(full), name)
    except ModuleNotFoundError as error:
        if error.name != full:
            raise
        raise ValueError(
            f"this way of context parallelism belongs to context-parallel/{overlay}, which is not "
            f"in this build: build with `--feature context-parallel/{overlay}`"
        ) from error
