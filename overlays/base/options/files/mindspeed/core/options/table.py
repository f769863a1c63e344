"""The generated table of options as values: which a config class has, and which are on."""

import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from mindspeed.option_table import ABSENT, OPTIONS, OVERLAYS


class Option(NamedTuple):
    """A row of `mindspeed.option_table`: one config field and its flag."""

    overlay: str
    flag: str
    field: str
    config: str
    type: str
    default: Any
    choices: tuple[Any, ...]
    minimum: float | None
    requires: tuple[str, ...]
    conflicts: tuple[str, ...]
    checks: tuple[str, ...]
    native: bool
    maps: Mapping[str, Any]
    extends: bool
    listed: bool
    """Whether Megatron's parser lists the flag by hand."""
    help: str

    @property
    def is_ours(self) -> bool:
        """Whether the field and the flag are made here, not by Megatron."""
        return not self.extends and (not self.native or bool(self.maps))

    def is_on(self, config: Any) -> bool:
        """Whether `config` asks for it: any value but the default; of an extension its choices."""
        value = getattr(config, self.field, self.default)
        if self.extends:
            return value in self.choices
        if isinstance(value, list) and isinstance(self.default, tuple):
            value = tuple(value)
        return value is not self.default and value != self.default


class Overlay(NamedTuple):
    """An overlay of this build."""

    id: str
    level: int
    by_level: bool
    summary: str


ALL_OPTIONS = tuple(Option(**row) for row in OPTIONS)

ALL_OVERLAYS = {row[0]: Overlay(*row) for row in OVERLAYS}

ABSENT_FIELDS = {field: (overlay, flag) for overlay, flag, field in ABSENT}

# Config classes that `add_options` has seen, by name.
CONFIG_CLASSES: dict[str, type] = {}


class ClassOptions(NamedTuple):
    """The options of a config class, prepared for a fast look at a config."""

    options: tuple[Option, ...]
    plain: tuple[Option, ...]
    """Those that are on when they differ from their default."""
    defaults: tuple[Any, ...]
    read: Callable[[Any], tuple[Any, ...]]
    """The values of the plain ones, all at once."""
    extended: tuple[Option, ...]
    """Those that add choices to an option of Megatron's."""


_OF_CLASS: dict[type, ClassOptions] = {}


def prepare(kind: type) -> ClassOptions:
    """The options of a config class, with those of the classes it derives from."""
    found = _OF_CLASS.get(kind)
    if found is None:
        names = {base.__name__ for base in kind.__mro__ if base in CONFIG_CLASSES.values()}
        options = tuple(option for option in ALL_OPTIONS if option.config in names)
        plain = tuple(option for option in options if not option.extends)
        found = ClassOptions(
            options,
            plain,
            tuple(option.default for option in plain),
            _make_reader([option.field for option in plain]),
            tuple(option for option in options if option.extends),
        )
        _OF_CLASS[kind] = found
    return found


def options_of(kind: type) -> tuple[Option, ...]:
    """The options that configs of class `kind` have; none for a class that is no such config."""
    return prepare(kind).options


def _make_reader(fields: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    if len(fields) > 1:
        return operator.attrgetter(*fields)  # one call into C for all of them
    return lambda config: tuple(getattr(config, field) for field in fields)


def find_active(config: Any) -> list[Option]:
    """The options of `config` that are on; a few microseconds where none is."""
    _, plain, defaults, read, extended = prepare(type(config))
    try:
        values = read(config)
        if values == defaults:
            changed = []
        else:
            rows = zip(plain, values, defaults, strict=True)
            changed = [o for o, value, default in rows if value is not default and o.is_on(config)]
    except (AttributeError, ValueError, RuntimeError):  # made without __init__; no plain values
        changed = [option for option in plain if option.is_on(config)]
    return (
        changed + [option for option in extended if option.is_on(config)] if extended else changed
    )


def is_rewrite_on(config: Any, overlay: str) -> bool:
    """Whether `optimization_level` switches on an overlay that has no option of its own.

    Args:
        config: any config that derives from ModelParallelConfig.
        overlay: the id of an overlay of this build that says `by-level = true`.
    """
    chosen = config.optimization_level
    row = ALL_OVERLAYS[overlay]
    return row.by_level and chosen is not None and row.level <= chosen
