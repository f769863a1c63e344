"""The names of TransformerEngine's low precision recipes; building one is refused."""

from enum import Enum
from typing import Any

from mindspeed.te.refusal import refuse


class Format(Enum):
    """Floating-point formats of 8 bits; the pair is (forward, backward)."""

    E4M3 = ("e4m3", "e4m3")
    E5M2 = ("e5m2", "e5m2")
    HYBRID = ("e4m3", "e5m2")


class Recipe:
    """A way to compute in low precision."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        refuse(f"the low precision recipe {type(self).__name__}")


class DelayedScaling(Recipe):
    """fp8 with scales from the history of maxima."""


class Float8CurrentScaling(Recipe):
    """fp8 with a scale per tensor."""


class Float8BlockScaling(Recipe):
    """fp8 with a scale per block."""


class MXFP8BlockScaling(Recipe):
    """Microscaling fp8."""


class NVFP4BlockScaling(Recipe):
    """fp4 with a scale per block."""
