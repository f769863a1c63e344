"""`add_options`: the decorator under `@dataclass` that gives a config class its option fields.

Fields are keyword-only, so upstream's fields keep their positions, in the class and in every
subclass. They are real dataclass fields: replace, asdict, pickle and copy see them, and from core
0.17 on Megatron's ArgumentGroupFactory makes the flags from them.
"""

import dataclasses
import functools
from typing import Any, TypeVar

from mindspeed.core.options.names import guard_keywords
from mindspeed.core.options.rules import validate
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
    CONFIG_CLASSES[cls.__name__] = cls
    annotations = cls.__annotations__
    for option in ALL_OPTIONS:
        if option.config != cls.__name__ or option.upstream:
            continue
        if option.field in annotations:
            raise TypeError(f"{cls.__name__}.{option.field} of {option.overlay} exists upstream")
        annotations[option.field] = _annotate(option)
        setattr(cls, option.field, _make_field(option))
    _validate_after_post_init(cls)
    if not issubclass(cls, tuple(c for c in CONFIG_CLASSES.values() if c is not cls)):
        guard_keywords(cls)  # on a root class: its subclasses inherit it
    return cls


def _annotate(option: Option) -> Any:
    if option.type.startswith("list["):
        kind: Any = list[SCALARS[option.type[5:-1]]]  # type: ignore[misc]
    else:
        kind = SCALARS[option.type]
    return kind | None if option.default is None else kind


def _make_field(option: Option) -> Any:
    metadata = {"argparse_meta": make_argument(option), "mindspeed": option.overlay}
    if isinstance(option.default, list):
        return dataclasses.field(
            default_factory=functools.partial(list, option.default), kw_only=True, metadata=metadata
        )
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


def _validate_after_post_init(cls: type) -> None:
    upstream = cls.__dict__.get("__post_init__")

    def __post_init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if upstream is not None:
            upstream(self, *args, **kwargs)
        else:
            following = getattr(super(cls, self), "__post_init__", None)
            if following is not None:
                following(*args, **kwargs)
        # While a base class runs, what its subclass derives is not there yet: the last one looks.
        if _most_derived(type(self)) is cls:
            validate(self)

    __post_init__.__doc__ = getattr(upstream, "__doc__", None)
    __post_init__.__qualname__ = f"{cls.__qualname__}.__post_init__"
    __post_init__.__module__ = cls.__module__
    cls.__post_init__ = __post_init__  # type: ignore[attr-defined]


@functools.cache
def _most_derived(kind: type) -> type:
    return next(base for base in kind.__mro__ if CONFIG_CLASSES.get(base.__name__) is base)
