"""Config fields that overlays add to Megatron's dataclasses."""

import dataclasses
from typing import Any


def option(default: Any) -> Any:
    """A dataclass field that no positional argument reaches.

    Upstream's fields keep their positions, in the class that gains the field and in its subclasses.

    Args:
        default: upstream's behaviour; immutable.
    """
    return dataclasses.field(default=default, kw_only=True)
