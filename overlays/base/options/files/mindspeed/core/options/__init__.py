"""Options of overlays on Megatron's configs: fields, validation, what is on.

`mindspeed.option_table` says which options there are. A patched config class carries one
decorator, `add_options`, and models call `confirm_options` when they are built. Nothing here
imports a feature, except the rule functions of an option that is on.
"""

from mindspeed.core.options.confirm import confirm_options, describe_model
from mindspeed.core.options.fields import add_options
from mindspeed.core.options.rules import OptionError, refuse
from mindspeed.core.options.table import Option, is_rewrite_on, options_of

__all__ = [
    "Option",
    "OptionError",
    "add_options",
    "confirm_options",
    "describe_model",
    "is_rewrite_on",
    "options_of",
    "refuse",
]
