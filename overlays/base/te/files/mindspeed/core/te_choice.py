"""Which TransformerEngine to use: an installed one that works, or `mindspeed.te`.

    from mindspeed.core.te_choice import te

stands in the patched places of Megatron for `import transformer_engine as te`. An installed one
that fails to import is reported once, and from then on counts as absent for everybody in this
process: the imports that upstream guards with `except ImportError` would otherwise crash on what
it raises.
"""

import importlib
import importlib.util
import sys
import warnings
from functools import cache
from types import ModuleType
from typing import Any

_NAME = "transformer_engine"
_FP8_NAMES = ("FP8GlobalStateManager", "fp8_autocast", "fp8_model_init")


def choose_te() -> ModuleType:
    """The installed `transformer_engine`, or `mindspeed.te` in its place."""
    return find_installed() or importlib.import_module("mindspeed.te")


@cache
def find_installed() -> ModuleType | None:
    """The installed `transformer_engine`, None where there is none that works.

    Where there is none, this costs one look along `sys.path`. Each process asks once.

    Warns:
        RuntimeWarning: one is installed, and importing it raised; names the error.
    """
    if not _is_present():
        return None
    try:
        found = importlib.import_module(_NAME)
        importlib.import_module(f"{_NAME}.pytorch")
    except Exception as error:  # a missing library is an OSError, a foreign device may be anything
        _discard()
        warnings.warn(
            "transformer_engine is installed and cannot be imported "
            f"({type(error).__name__}: {error}). It counts as absent in this process, "
            "and mindspeed.te stands in for it. Repair or uninstall it to be rid of this warning",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    return found


def _is_present() -> bool:
    if _NAME in sys.modules:
        return sys.modules[_NAME] is not None
    return importlib.util.find_spec(_NAME) is not None


def _discard() -> None:
    """Make `import transformer_engine` an ImportError from now on, forget what it left behind."""
    for name in list(sys.modules):
        if name == _NAME or name.startswith(f"{_NAME}."):
            del sys.modules[name]
    sys.modules[_NAME] = None  # type: ignore[assignment]


def __getattr__(name: str) -> Any:
    """`te`, and the names that the wrappers import from `transformer_engine.pytorch.fp8`."""
    if name == "te":
        return choose_te()
    if name in _FP8_NAMES:
        return getattr(importlib.import_module(f"{choose_te().__name__}.pytorch.fp8"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
