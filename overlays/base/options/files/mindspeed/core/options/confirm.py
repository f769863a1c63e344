"""`confirm_options`: what a model calls with its config before it is built."""

import logging
import sys
import weakref
from typing import Any

from mindspeed.core.options.names import find_stray_attributes
from mindspeed.core.options.rules import OptionError, apply_maps, validate
from mindspeed.core.options.table import ALL_OVERLAYS, find_active, is_rewrite_on, options_of

_logger = logging.getLogger("mindspeed")

# Configs that something was built from, by id: dataclasses with == are not hashable.
SEEN: dict[int, "weakref.ref[Any]"] = {}

_LOGGED: set[str] = set()


def confirm_options(config: Any) -> None:
    """Validate again, since fields may have been set after construction; log once what is on.

    Args:
        config: of a model, an optimizer or a data-parallel wrapper; one that is none of Megatron's
            configs is let through.

    Raises:
        OptionError: a rule is violated, or an attribute was set that is a misspelt option.
    """
    if not options_of(type(config)):
        return
    apply_maps(config)
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
    text = describe_active(config)
    if text not in _LOGGED and _is_first_rank():
        _LOGGED.add(text)
        _logger.info("%s", text)


def _is_first_rank() -> bool:
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available():
        return True
    return not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0


def describe_active(config: Any) -> str:
    """One line: the options of a config that are on, and the rewrites that its level adds."""
    shown = [f"{option.field}={getattr(config, option.field)!r}" for option in find_active(config)]
    shown += [f"{name} (by level)" for name in find_rewrites(config)]
    return f"{type(config).__name__}: {', '.join(shown) or 'every Ascend option is off'}"


def describe_model(model: Any) -> str:
    """The same for the config of a model, which training prints."""
    return f"mindspeed: {describe_active(getattr(model, 'config', None))}"


def find_rewrites(config: Any) -> list[str]:
    """The overlays without an option that `optimization_level` switches on."""
    if getattr(config, "optimization_level", None) is None:
        return []
    return [name for name in ALL_OVERLAYS if is_rewrite_on(config, name)]
