"""`add_options`: the decorator under `@dataclass` that gives a config class its option fields.

Fields are keyword-only, so upstream's fields keep their positions, in the class and in every
subclass. They are real dataclass fields: replace, asdict, pickle and copy see them, and from core
0.17 on Megatron's ArgumentGroupFactory makes the flags from them.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeVar

from mindspeed.core.options.names import guard_keywords
from mindspeed.core.options.rules import apply_maps, validate
from mindspeed.core.options.table import ALL_OPTIONS, CONFIG_CLASSES, Option

_Class = TypeVar("_Class", bound=type)

SCALARS: dict[str, type] = {"bool": bool, "int": int, "float": float, "str": str}


def add_options(cls: _Class) -> _Class:
    """Add the fields of this build's options to `cls`, and validate them after `__post_init__`.

    Args:
        cls: one of the four config classes, before `@dataclass` turns it into one.

    Raises:
        TypeError: upstream has a field of that name; the option's `owner` must say since when.
    """
    is_root = not any(base in CONFIG_CLASSES.values() for base in cls.__mro__[1:])
    CONFIG_CLASSES[cls.__name__] = cls
    annotations = cls.__annotations__
    for option in ALL_OPTIONS:
        if option.config != cls.__name__ or not option.is_ours:
            continue
        if option.field in annotations:
            raise TypeError(f"{cls.__name__}.{option.field} of {option.overlay} exists upstream")
        annotations[option.field] = _annotate(option)
        setattr(cls, option.field, _make_field(option))
    cls.__post_init__ = _validate_after(cls, cls.__dict__.get("__post_init__"))  # type: ignore[attr-defined]
    if is_root:
        guard_keywords(cls)  # its subclasses inherit it
    return cls


def _annotate(option: Option) -> Any:
    if option.type.startswith("list["):
        kind: Any = list[SCALARS[option.type[5:-1]]]  # type: ignore[misc]
    else:
        kind = SCALARS[option.type]
    return kind | None if option.default is None else kind


def _make_field(option: Option) -> Any:
    metadata = {"argparse_meta": make_argument(option), "mindspeed": option.overlay}
    return dataclasses.field(default=option.default, kw_only=True, metadata=metadata)


def make_argument(option: Option) -> dict[str, Any]:
    """Keywords of `add_argument`, with the flags under `arg_names`."""
    argument: dict[str, Any] = {
        "arg_names": [option.flag],
        "dest": option.field,
        "default": option.default,
        "help": f"{option.help} ({option.overlay})".replace("%", "%%"),
    }
    if option.type == "bool":
        return argument | {"action": "store_false" if option.default is True else "store_true"}
    kind = option.type.removeprefix("list[").rstrip("]")
    argument["type"] = SCALARS[kind]
    if option.choices:
        argument["choices"] = list(option.choices)
    if option.type.startswith("list["):
        argument["nargs"] = "+"
    return argument


def _validate_after(cls: type, upstream: Callable[..., None] | None) -> Callable[..., None]:
    """A `__post_init__` that runs upstream's own (or the base class's) and then validates."""

    def __post_init__(self: Any, *args: Any, **kwargs: Any) -> None:
        apply_maps(self)
        if upstream is not None:
            upstream(self, *args, **kwargs)
        elif following := getattr(super(cls, self), "__post_init__", None):
            following(*args, **kwargs)
        # While a base class runs, what its subclass derives is not there yet: the last one looks.
        if _most_derived(type(self)) is cls:
            validate(self)

    functools.update_wrapper(__post_init__, upstream or __post_init__)
    return __post_init__


@functools.cache
def _most_derived(kind: type) -> type:
    return next(base for base in kind.__mro__ if base in CONFIG_CLASSES.values())
