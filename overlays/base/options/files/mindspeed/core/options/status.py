"""`mindspeed.status()`: what is built in, and what is on and why for each config."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import mindspeed
from mindspeed.core.options.confirm import SEEN, find_rewrites
from mindspeed.core.options.table import (
    ABSENT_FIELDS,
    ALL_OPTIONS,
    ALL_OVERLAYS,
    Option,
    find_active,
    options_of,
)
from mindspeed.core.origin import check_origin
from mindspeed.option_table import RELEASE


@dataclass(frozen=True)
class ConfigStatus:
    """What one config switches on."""

    name: str
    """The config's class."""
    active: dict[str, str]
    """Field (or overlay, of a rewrite without an option) to why it is on."""
    inactive: tuple[str, ...]
    """Fields at their defaults."""


@dataclass(frozen=True, repr=False)
class Status:
    """A build and the configs of this process; `str()` is for people."""

    version: str
    release: str
    overlays: dict[str, str]
    """Id to summary."""
    absent: tuple[str, ...]
    """Overlays with options that are not in this build."""
    options: dict[str, str]
    """Flag to the config field and to what implements it."""
    configs: tuple[ConfigStatus, ...]
    problem: str
    """Why another Megatron would run than the one of this build; empty if none would."""

    def __str__(self) -> str:
        return "\n".join(_render(self))

    __repr__ = __str__


def get_status(*configs: Any) -> Status:
    """The status of this build and of `configs`.

    Args:
        configs: Megatron's configs; by default those that this process has built models from.
    """
    chosen = configs or tuple(c for ref in list(SEEN.values()) if (c := ref()) is not None)
    problem = ""
    try:
        check_origin()
    except RuntimeError as error:
        problem = str(error)
    return Status(
        version=str(mindspeed.build_info().get("version", "unknown, a patched source tree")),
        release=RELEASE,
        overlays={overlay.id: overlay.summary for overlay in ALL_OVERLAYS.values()},
        absent=tuple(dict.fromkeys(overlay for overlay, _ in ABSENT_FIELDS.values())),
        options={o.flag: f"{o.config}.{o.field}, {_name_maker(o)}" for o in ALL_OPTIONS},
        configs=tuple(_look_at(config) for config in chosen),
        problem=problem,
    )


def _name_maker(option: Option) -> str:
    if option.native:
        return "native in Megatron"
    return f"more choices by {option.overlay}" if option.extends else option.overlay


def _look_at(config: Any) -> ConfigStatus:
    active = find_active(config)
    reasons = {option.field: _give_reason(option, config) for option in active}
    level = getattr(config, "optimization_level", None)
    for name in find_rewrites(config):
        reasons[name] = f"optimization_level={level} covers its level, {ALL_OVERLAYS[name].level}"
    inactive = (o.field for o in options_of(type(config)) if o not in active)
    return ConfigStatus(type(config).__name__, reasons, tuple(inactive))


def _give_reason(option: Option, config: Any) -> str:
    value = getattr(config, option.field)
    said = f"is {value!r}, not {option.default!r}: {_name_maker(option)}"
    if option.maps:
        field = option.maps["field"]
        return f"{said}, {field} is {getattr(config, field)!r}"
    return said


def _render(status: Status) -> Iterator[str]:
    yield f"megatron-core {status.version}, made of {status.release}"
    if status.problem:
        yield f"warning: {status.problem}"
    yield "overlays:"
    width = max(map(len, status.overlays), default=0)
    yield from (f"  {name:<{width}}  {text}" for name, text in status.overlays.items())
    if status.absent:
        yield f"not built in: {', '.join(status.absent)}"
    yield "options:"
    width = max(map(len, status.options), default=0)
    yield from (f"  {flag:<{width}}  {text}" for flag, text in status.options.items())
    for config in status.configs:
        yield f"{config.name}:"
        yield from (f"  on   {name} {why}" for name, why in config.active.items())
        yield f"  off  {', '.join(config.inactive) or 'none'}"
    if not status.configs:
        yield "no model has been built in this process"
