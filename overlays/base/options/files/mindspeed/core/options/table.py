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
    read: Callable[[Any], Any] | None
    """All fields of a config at once; None without options."""
    defaults: Any
    """What `read` gives where nothing is on and nothing is extended."""


_OF_CLASS: dict[type, ClassOptions] = {}


def prepare(kind: type) -> ClassOptions:
    """The options of a config class, with those of the classes it derives from."""
    found = _OF_CLASS.get(kind)
    if found is None:
        names = {base.__name__ for base in kind.__mro__ if base in CONFIG_CLASSES.values()}
        options = tuple(option for option in ALL_OPTIONS if option.config in names)
        plain = [option for option in options if not option.extends]
        defaults = tuple(option.default for option in plain)
        found = ClassOptions(
            options,
            operator.attrgetter(*(option.field for option in plain)) if plain else None,
            defaults[0] if len(plain) == 1 else defaults,
        )
        _OF_CLASS[kind] = found
    return found


def options_of(kind: type) -> tuple[Option, ...]:
    """The options that configs of class `kind` have; none for a class that is no such config."""
    return prepare(kind).options


def find_active(config: Any) -> list[Option]:
    """The options of `config` that are on, a few microseconds where none is."""
    options, read, defaults = prepare(type(config))
    try:
        if read is None or read(config) == defaults:
            return [option for option in options if option.extends and option.is_on(config)]
    except (AttributeError, ValueError, RuntimeError):  # made without __init__; no plain values
        pass
    return [option for option in options if option.is_on(config)]


def is_rewrite_on(config: Any, overlay: str) -> bool:
    """Whether `optimization_level` switches on an overlay that has no option of its own.

    Args:
        config: any config that derives from ModelParallelConfig.
        overlay: the id of an overlay of this build that says `by-level = true`.
    """
    chosen = config.optimization_level
    row = ALL_OVERLAYS[overlay]
    return row.by_level and chosen is not None and row.level <= chosen
