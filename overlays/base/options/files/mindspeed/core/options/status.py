"""`mindspeed.status()`: what is built in, what is on, and for each config why."""

from collections.abc import Iterable, Iterator
from typing import Any

import mindspeed
from mindspeed.core.options.confirm import SEEN
from mindspeed.core.options.table import ABSENT_FIELDS, ALL_OPTIONS, Option, options_of
from mindspeed.option_table import RELEASE


def status(*configs: Any) -> str:
    """A text for people.

    Args:
        configs: Megatron's configs to tell about; by default those that this process has built
            models from.
    """
    chosen = configs or tuple(c for ref in list(SEEN.values()) if (c := ref()) is not None)
    return "\n".join([*_describe_build(), *_describe_configs(chosen)])


def _describe_build() -> Iterator[str]:
    info = mindspeed.build_info()
    version = info.get("version", "patched source tree")
    yield f"megatron-core {version}, made of {RELEASE}"
    overlays = [row["id"] for row in info.get("overlays", ())]
    overlays = overlays or list(dict.fromkeys(option.overlay for option in ALL_OPTIONS))
    yield f"overlays: {', '.join(overlays)}"
    absent = dict.fromkeys(overlay for overlay, _ in ABSENT_FIELDS.values())
    if absent:
        yield f"not built in: {', '.join(absent)}"
    yield "options:"
    width = max((len(option.flag) for option in ALL_OPTIONS), default=0)
    for option in ALL_OPTIONS:
        origin = "native" if option.upstream and not option.extends else option.overlay
        yield f"  {option.flag:<{width}}  {option.config}.{option.field}  ({origin})"


def _describe_configs(configs: Iterable[Any]) -> Iterator[str]:
    nobody = True
    for config in configs:
        nobody = False
        yield f"{type(config).__name__}:"
        options = options_of(type(config))
        on = [option for option in options if option.is_on(config)]
        for option in on:
            yield f"  on   {_reason(option, config)}"
        off = [option.field for option in options if option not in on]
        yield f"  off  {', '.join(off) or 'none'} (at their defaults)"
    if nobody:
        yield "no model has been built in this process"


def _reason(option: Option, config: Any) -> str:
    value = getattr(config, option.field)
    if option.upstream and not option.extends:
        return f"{option.field}={value!r}: native, Megatron has it since before {RELEASE}"
    return f"{option.field}={value!r}, default {option.default!r}: {option.overlay}, {option.help}"
