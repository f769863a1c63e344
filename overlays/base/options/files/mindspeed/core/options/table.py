"""The generated table of options as values, and which of them a config class has."""

from typing import Any, NamedTuple

from mindspeed.option_table import ABSENT, OPTIONS


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
    upstream: bool
    extends: bool
    help: str

    def is_on(self, config: Any) -> bool:
        """Whether `config` asks for it: any value but the default, of an extension its own ones."""
        value = getattr(config, self.field, self.default)
        if self.extends:
            return value in self.choices
        return value is not self.default and value != self.default


ALL_OPTIONS = tuple(Option(**row) for row in OPTIONS)

ABSENT_FIELDS = {field: (overlay, flag) for overlay, flag, field in ABSENT}

# Config classes that `add_options` has seen.
CONFIG_CLASSES: dict[str, type] = {}

_OF_CLASS: dict[type, tuple[Option, ...]] = {}


def options_of(kind: type) -> tuple[Option, ...]:
    """The options of a config class, with those of the classes it derives from."""
    found = _OF_CLASS.get(kind)
    if found is None:
        names = {base.__name__ for base in kind.__mro__ if base in CONFIG_CLASSES.values()}
        found = tuple(option for option in ALL_OPTIONS if option.config in names)
        _OF_CLASS[kind] = found
    return found


def has_level(config: Any, level: int) -> bool:
    """Whether `optimization_level` switches on the rewrites of `level` (0, 1 or 2)."""
    chosen = config.optimization_level
    return chosen is not None and level <= chosen
