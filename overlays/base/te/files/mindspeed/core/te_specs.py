"""Which classes a layer spec names: TransformerEngine's, or Megatron's own."""

import dataclasses
from collections.abc import Iterator
from functools import partial
from typing import Any

_WRAPPERS = "megatron.core.extensions.transformer_engine"


def choose_block_norm(spec: Any, local_norm: Any) -> Any:
    """The final norm of a transformer block that is described by one layer spec.

    Upstream takes TENorm wherever TransformerEngine is installed, and `local_norm` where not. With
    `mindspeed.te` both layer specs work in one process, so the spec decides.

    Args:
        spec: of a layer.
        local_norm: upstream's choice; without TransformerEngine that of the local spec.
    """
    if names_te(spec):
        from megatron.core.extensions.transformer_engine import TENorm

        return TENorm
    return local_norm


def names_te(spec: Any) -> bool:
    """Whether a layer spec names one of upstream's TransformerEngine wrappers, at any depth."""
    return any(getattr(found, "__module__", None) == _WRAPPERS for found in _walk(spec))


def _walk(spec: Any) -> Iterator[Any]:
    """Every class and function in a spec: in fields, containers and the arguments of partials."""
    if isinstance(spec, partial):
        yield from _walk_all([spec.func, *spec.args, *spec.keywords.values()])
    elif dataclasses.is_dataclass(spec) and not isinstance(spec, type):
        yield from _walk_all(getattr(spec, field.name) for field in dataclasses.fields(spec))
    elif isinstance(spec, dict):
        yield from _walk_all(spec.values())
    elif isinstance(spec, (list, tuple)):
        yield from _walk_all(spec)
    elif callable(spec):
        yield getattr(spec, "__func__", spec)


def _walk_all(specs: Any) -> Iterator[Any]:
    for spec in specs:
        yield from _walk(spec)
