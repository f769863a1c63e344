"""Validate the options of a config: every violated rule in one error.

Pure and idempotent: the config is only read, and nothing is remembered. A rule function of a
feature (`checks` in its overlay.toml) takes the config and yields `(rule, change)` pairs, two
sentences: what is not so, and what to set. It is imported when its option is on.
"""

import importlib
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

from mindspeed.core.options.table import ALL_OPTIONS, Option, options_of

_CONDITION = re.compile(r"([a-z][a-z0-9_]*)(?:(!?=)(.+))?")
_TYPES: dict[str, tuple[type, ...]] = {
    "bool": (bool,), "int": (int,), "float": (float, int), "str": (str,)
}  # fmt: skip

Violation = tuple[Option, Any, str, str]
"""Option, its value, the rule that it breaks, what to change."""


class OptionError(ValueError):
    """A config asks for what cannot be; says every option, value, rule and remedy."""


def validate(config: Any) -> None:
    """Check the options of a config.

    Raises:
        OptionError: every rule that is violated.
    """
    violations: list[Violation] = []
    for option in options_of(type(config)):
        if option.is_on(config):
            violations += _check(option, config)
    if violations:
        raise OptionError(describe(violations))


def refuse(field: str, config: Any, faults: Iterable[tuple[str, str]]) -> None:
    """For rules that need more than the config (a sequence length, groups): the same error.

    Args:
        field: the option's config field.
        config: the config that has it.
        faults: (rule, change) pairs; none raises nothing.

    Raises:
        OptionError: there is a fault.
    """
    option = next(option for option in ALL_OPTIONS if option.field == field)
    violations = [(option, getattr(config, field), rule, change) for rule, change in faults]
    if violations:
        raise OptionError(describe(violations))


def describe(violations: list[Violation]) -> str:
    """The text of the error, one line a violated rule."""
    lines = [
        f"{option.flag} ({option.field}={value!r}): {rule}; {change}"
        for option, value, rule, change in violations
    ]
    return lines[0] if len(lines) == 1 else "\n".join([f"{len(lines)} rules are broken:", *lines])


def _check(option: Option, config: Any) -> Iterator[Violation]:
    value = getattr(config, option.field)
    fault = _find_value_fault(option, value)
    if fault:
        yield option, value, *fault
        return
    for condition in option.requires:
        if _holds(condition, config) is False:
            yield (
                option,
                value,
                f"needs {condition}, which is {_show(condition, config)}",
                (f"set {condition}, or leave {option.field} at {option.default!r}"),
            )
    for condition in option.conflicts:
        if _holds(condition, config):
            yield (
                option,
                value,
                f"cannot be together with {condition}",
                (f"change {_parse(condition)[0]} or leave {option.field} at {option.default!r}"),
            )
    for check in option.checks:
        for rule, change in _load(check)(config):
            yield option, value, rule, change


def _find_value_fault(option: Option, value: Any) -> tuple[str, str] | None:
    if option.extends:
        return None
    is_list = option.type.startswith("list[")
    kinds = _TYPES[option.type[5:-1] if is_list else option.type]
    items = value if is_list and isinstance(value, (list, tuple)) else [value]
    right = isinstance(value, (list, tuple)) == is_list and all(
        isinstance(item, kinds) and (bool in kinds or not isinstance(item, bool)) for item in items
    )
    if not right:
        return f"must be {option.type}", f"it is of type {type(value).__name__}"
    wrong = [item for item in items if option.choices and item not in option.choices]
    if wrong:
        return f"must be one of {', '.join(map(str, option.choices))}", "choose one of them"
    if option.minimum is not None and value < option.minimum:
        return f"must be at least {option.minimum:g}", "raise it"
    return None


@cache
def _parse(condition: str) -> tuple[str, str, tuple[str, ...]]:
    match = _CONDITION.fullmatch(condition)
    assert match is not None, condition  # the tool has read it already
    return match[1], match[2] or "", tuple((match[3] or "").split("|"))


def _holds(condition: str, config: Any) -> bool:
    """Whether a condition holds; a field that this release lacks is unset."""
    field, operator, values = _parse(condition)
    value = getattr(config, field, None)
    if not operator:
        return bool(value)
    return (_spell(value) in values) == (operator == "=")


def _spell(value: Any) -> str:
    """A value as a condition writes it: `true`, `null`, `4`, `flash` for AttnBackend.flash."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    return str(getattr(value, "name", value))


def _show(condition: str, config: Any) -> str:
    return repr(getattr(config, _parse(condition)[0], None))


@cache
def _load(check: str) -> Callable[[Any], Iterable[tuple[str, str]]]:
    module, _, name = check.partition(":")
    function: Callable[[Any], Iterable[tuple[str, str]]]
    function = getattr(importlib.import_module(module), name)
    return function
