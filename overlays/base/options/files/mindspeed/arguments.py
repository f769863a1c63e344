"""The flags of this build, for argument parsers.

Megatron's own parser has them already. `add_mindspeed_args` is for parsers that are not Megatron's,
and does no harm as an `extra_args_provider`: what a parser has is left alone.
"""

from argparse import Action, ArgumentParser, Namespace

from mindspeed.core.options.fields import make_argument
from mindspeed.core.options.table import ALL_OPTIONS, Option

__all__ = ["add_mindspeed_args", "process_args"]


def add_mindspeed_args(parser: ArgumentParser) -> ArgumentParser:
    """Add the flags that `parser` lacks, and the choices that overlays add to Megatron's own flags.

    Returns:
        The parser.
    """
    group = None
    for option in ALL_OPTIONS:
        action = _find_action(parser, option)
        if option.extends and action is not None and action.choices is not None:
            known = list(action.choices)
            action.choices = known + [c for c in option.choices if c not in known]
        elif action is None and option.is_ours:
            group = group or parser.add_argument_group("mindspeed", "options of Ascend overlays")
            argument = make_argument(option)
            group.add_argument(*argument.pop("arg_names"), **argument)
    return parser


def _find_action(parser: ArgumentParser, option: Option) -> Action | None:
    for action in parser._actions:
        if option.flag in action.option_strings or action.dest == option.field:
            return action
    return None


def process_args(args: Namespace) -> Namespace:
    """Give `args` of a foreign parser every option that it lacks, at its default.

    Returns:
        The same namespace.
    """
    for option in ALL_OPTIONS:
        if option.is_ours and not hasattr(args, option.field):
            setattr(args, option.field, option.default)
    return args
