"""Validate the options of a config: every violated rule in one error.

`validate` is pure and idempotent: the config is only read, and nothing is remembered. A rule
function of a feature (`checks` in its overlay.toml) takes the config and yields `(rule, change)`
pairs, two sentences: what is not so, and what to set. It is imported when its option is on.
"""

import importlib
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

from mindspeed.core.options.table import ALL_OPTIONS, Option, find_active

_CONDITION = re.compile(r"([a-z][a-z0-9_]*)(?:(!?=)(.+))?")
_TYPES: dict[str, tuple[type, ...]] = {
    "bool": (bool,),
    "int": (int,),
    "float": (float, int),
    "str": (str,),
}

_MAPPED = [option for option in ALL_OPTIONS if option.maps]

Fault = tuple[str, str]
"""The rule that is broken, and what to change."""
Violation = tuple[Option, Any, str, str]
"""Option, its value, and a fault."""


class OptionError(ValueError):
    """A config asks for what cannot be; says every option, value, rule and remedy."""


def validate(config: Any) -> None:
    """Check the options of a config.

    Raises:
        OptionError: every rule that is violated.
    """
    active = find_active(config)
    if active:
        _raise_for(
            (option, getattr(config, option.field), rule, change)
            for option in active
            for rule, change in _find_faults(option, config)
        )


def refuse(field: str, config: Any, faults: Iterable[Fault]) -> None:
    """Raise the same error for rules that need more than the config: a sequence length, groups.

    Args:
        field: the option's config field.
        config: the config that has it.
        faults: what is wrong; nothing happens without any.

    Raises:
        OptionError: there is a fault.
    """
    option = next(option for option in ALL_OPTIONS if option.field == field)
    _raise_for((option, getattr(config, field), rule, change) for rule, change in faults)


def apply_maps(config: Any) -> None:
    """Where Megatron has a feature under a name of its own, set its field as the option says.

    A field that differs from Megatron's default is left alone; `validate` compares them.
    """
    if not _MAPPED:
        return
    for option in find_active(config):
        if option.maps:
            field = option.maps["field"]
            if getattr(config, field) == _upstream_default(config, field):
                setattr(config, field, _mapped_value(option, config))


def _raise_for(violations: Iterable[Violation]) -> None:
    lines = [
        f"{option.flag} ({option.field}={value!r}): {rule}; {change}"
        for option, value, rule, change in violations
    ]
    if lines:
        head = [f"{len(lines)} rules of options are broken:"] if len(lines) > 1 else []
        raise OptionError("\n".join([*head, *lines]))


def _find_faults(option: Option, config: Any) -> Iterator[Fault]:
    fault = None if option.native else _find_value_fault(option, getattr(config, option.field))
    if fault:
        yield fault
        return
    for condition in option.requires:
        if not holds(condition, config):
            field = _parse(condition)[0]
            shown = repr(getattr(config, field, None))
            yield (
                f"needs {condition}, and {field} is {shown}",
                f"set {condition}, or {_leave(option)}",
            )
    for condition in option.conflicts:
        if holds(condition, config):
            field = _parse(condition)[0]
            yield f"cannot be together with {condition}", f"change {field}, or {_leave(option)}"
    if option.maps:
        field, wanted = option.maps["field"], _mapped_value(option, config)
        if getattr(config, field) != wanted:
            rule = f"means {field}={wanted!r}, and that is {getattr(config, field)!r}"
            yield rule, f"change {field}, or {_leave(option)}"
    for check in option.checks:
        yield from _load(check)(config)


def _leave(option: Option) -> str:
    return f"leave {option.field} at {option.default!r}"


def _find_value_fault(option: Option, value: Any) -> Fault | None:
    if option.extends or _is_plainly_right(option, value):
        return None
    is_list = option.type.startswith("list[")
    kinds = _TYPES[option.type[5:-1] if is_list else option.type]
    items = value if is_list and isinstance(value, (list, tuple)) else [value]
    if isinstance(value, (list, tuple)) != is_list:
        return f"must be {option.type}, and is {type(value).__name__}", "change its type"
    strange = [item for item in items if not _is_a(item, kinds)]
    if strange:
        kind = type(strange[0]).__name__
        said = f"must be {option.type}, and {'holds' if is_list else 'is'} {kind}"
        return said, "change its type"
    if option.choices and not all(item in option.choices for item in items):
        return f"must be one of {', '.join(map(str, option.choices))}", "choose one of them"
    if option.minimum is not None and value < option.minimum:
        return f"must be at least {option.minimum:g}", "raise it"
    return None


def _is_plainly_right(option: Option, value: Any) -> bool:
    """Whether a glance is enough, as it is for nearly every value."""
    return (
        type(value) in _TYPES.get(option.type, ())
        and option.minimum is None
        and (not option.choices or value in option.choices)
    )


def _is_a(value: Any, kinds: tuple[type, ...]) -> bool:
    return isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))


def _upstream_default(config: Any, field: str) -> Any:
    return type(config).__dataclass_fields__[field].default


def _mapped_value(option: Option, config: Any) -> Any:
    return option.maps["value"] if "value" in option.maps else getattr(config, option.field)


def holds(condition: str, config: Any) -> bool:
    """Whether `field`, `field=value`, `field=one|other` or `field!=value` is so.

    A field that this release lacks is unset.
    """
    field, operator, values = _parse(condition)
    value = getattr(config, field, None)
    return bool(value) if not operator else (_spell(value) in values) == (operator == "=")


@cache
def _parse(condition: str) -> tuple[str, str, tuple[str, ...]]:
    match = _CONDITION.fullmatch(condition)
    assert match is not None, condition  # the tool has read it already
    return match[1], match[2] or "", tuple((match[3] or "").split("|"))


def _spell(value: Any) -> str:
    """A value as a condition writes it: `true`, `none`, `4`, `flash` for AttnBackend.flash."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    return str(getattr(value, "name", value))


@cache
def _load(check: str) -> Callable[[Any], Iterable[Fault]]:
    module, _, name = check.partition(":")
    function: Callable[[Any], Iterable[Fault]] = getattr(importlib.import_module(module), name)
    return function
