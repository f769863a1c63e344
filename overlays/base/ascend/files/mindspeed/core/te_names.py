"""The names of `megatron.core.extensions.transformer_engine`, also without TransformerEngine.

Core 0.12 imports that module without a guard in places that have a way without TransformerEngine.
Here each name is upstream's own where TransformerEngine imports, and otherwise a class that may be
named, compared and put into a layer spec; building one raises an ImportError that names it.
"""

from typing import Any, NoReturn


class _MissingName(type):
    """The type of the stand-ins: their other attributes are as absent as TransformerEngine is."""

    def __call__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        raise ImportError(
            f"{cls.__name__} needs TransformerEngine, which is not installed",
            name="transformer_engine",
        )

    def __getattr__(cls, name: str) -> NoReturn:
        if name.startswith("_"):  # inspect, copy and typing ask for these
            raise AttributeError(name)
        raise ImportError(
            f"{cls.__name__}.{name} needs TransformerEngine, which is not installed",
            name="transformer_engine",
        )


def __getattr__(name: str) -> Any:
    """`from mindspeed.core.te_names import TENorm` comes here."""
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from megatron.core.extensions import transformer_engine
    except ImportError:
        return _MissingName(name, (), {"__module__": __name__})
    return getattr(transformer_engine, name)
