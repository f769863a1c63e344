"""`confirm_options`: what a model calls with its config before it is built."""

import logging
import weakref
from typing import Any

from mindspeed.core.options.names import find_stray_attributes
from mindspeed.core.options.rules import OptionError, validate
from mindspeed.core.options.table import options_of

_logger = logging.getLogger("mindspeed")

# Configs that a model was built from, by id: dataclasses with == are not hashable.
SEEN: dict[int, "weakref.ref[Any]"] = {}


def confirm_options(config: Any) -> None:
    """Validate again, since fields may have been set after construction; tell what is on, once.

    Args:
        config: of a model; one that is none of Megatron's configs, or None, is let through.

    Raises:
        OptionError: a rule is violated, or an attribute was set that is a misspelt option.
    """
    if not options_of(type(config)):
        return
    validate(config)
    known = SEEN.get(id(config))
    if known is None or known() is not config:
        _confirm_first(config)


def _confirm_first(config: Any) -> None:
    remarks = find_stray_attributes(config)
    if remarks:
        raise OptionError("; ".join(remarks))
    key = id(config)
    SEEN[key] = weakref.ref(config, lambda _: SEEN.pop(key, None))
    _logger.info("%s", describe_active(config))


def describe_active(config: Any) -> str:
    """One line: the options of a config that are on."""
    on = [option for option in options_of(type(config)) if option.is_on(config)]
    shown = ", ".join(f"{option.field}={getattr(config, option.field)!r}" for option in on)
    return f"{type(config).__name__}: {shown or 'every Ascend option is off'}"
