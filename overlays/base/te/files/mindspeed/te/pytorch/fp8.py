"""`transformer_engine.pytorch.fp8`: low precision is never on, and switching it on is refused."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mindspeed.te.refusal import refuse


class FP8GlobalStateManager:
    """Whether low precision is on."""

    @classmethod
    def is_fp8_enabled(cls) -> bool:
        """Never."""
        return False

    @classmethod
    def is_fp8_calibration(cls) -> bool:
        """Never."""
        return False


@contextmanager
def fp8_autocast(enabled: bool = True, **settings: Any) -> Iterator[None]:
    """A context with low precision off.

    Raises:
        RuntimeError: `enabled`.
    """
    if enabled:
        refuse(f"fp8_autocast with {settings.get('fp8_recipe')}")
    yield


@contextmanager
def fp8_model_init(enabled: bool = True, **settings: Any) -> Iterator[None]:
    """A context in which parameters are made in their own dtype.

    Raises:
        RuntimeError: `enabled`.
    """
    if enabled:
        refuse("fp8_model_init")
    yield
