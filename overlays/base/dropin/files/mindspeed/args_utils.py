"""MindSpeed's way to its own arguments, for the frameworks that ask so.

Nothing is patched by arguments here: options are fields of Megatron's configs. What is asked is
answered from this build's table of options, and what this build lacks is said.
"""

import argparse
import logging
from collections.abc import Mapping
from typing import Any

from mindspeed.arguments import add_mindspeed_args
from mindspeed.core.options.rules import OptionError
from mindspeed.core.options.table import ABSENT_FIELDS, ALL_OPTIONS

__all__ = ["check_options", "get_full_args", "get_mindspeed_args"]

_logger = logging.getLogger("mindspeed")


def get_mindspeed_args(get_defaults: bool = False) -> argparse.Namespace:
    """This build's options as the command line gives them.

    Args:
        get_defaults: ignore the command line.
    """
    parser = add_mindspeed_args(argparse.ArgumentParser(add_help=False, allow_abbrev=False))
    return parser.parse_known_args([] if get_defaults else None)[0]


def get_full_args() -> argparse.Namespace:
    """Megatron's arguments where its training has parsed them, else `get_mindspeed_args()`."""
    try:
        from megatron.training.global_vars import get_args

        found: argparse.Namespace = get_args()
    except (ImportError, AssertionError):
        return get_mindspeed_args()
    return found


def check_options(options: Mapping[str, Any] | argparse.Namespace) -> None:
    """What is left of MindSpeed's `repatch`: make sure that each option asked for is in this build.

    Setting an option is done on Megatron's config, which validates it.

    Args:
        options: names to values; names that are none of ours (Megatron's own fields) are let
            through and listed in a debug message.

    Raises:
        OptionError: an option is on whose overlay this build lacks, or has a value that is none of
            its choices.
    """
    given = options if isinstance(options, Mapping) else vars(options)
    known = {option.field: option for option in ALL_OPTIONS}
    wrong = []
    for name, value in given.items():
        if name in ABSENT_FIELDS and value not in (None, False):
            overlay, flag = ABSENT_FIELDS[name]
            wrong.append(
                f"{flag} ({name}={value!r}): {overlay} is not in this build; build with it"
            )
        option = known.get(name)
        # Choices that extend Megatron's own are not all choices.
        if option and option.choices and not option.extends and value != option.default:
            items = value if isinstance(value, (list, tuple)) else [value]
            if not all(item in option.choices for item in items):
                choices = ", ".join(map(str, option.choices))
                wrong.append(f"{option.flag} ({name}={value!r}): must be one of {choices}")
    if wrong:
        raise OptionError("\n".join(wrong))
    others = sorted(set(given) - set(known))
    if others:
        _logger.debug("not options of this build, left to Megatron: %s", ", ".join(others))
