"""The flags of this build, for argument parsers.

Megatron's own parser has them already. `add_mindspeed_args` is for parsers that are not Megatron's,
and does no harm as an `extra_args_provider`: what a parser has is left alone.
"""

from argparse import Action, ArgumentParser, Namespace
from collections.abc import Callable
from typing import NoReturn

from mindspeed.core.options.fields import make_argument
from mindspeed.core.options.mindspeed_flags import read_flags
from mindspeed.core.options.table import ABSENT_FIELDS, ALL_OPTIONS, Option

__all__ = ["add_mindspeed_args", "list_fields_with_flags", "process_args"]


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
    if "error" not in vars(parser):
        parser.error = _explain_unknown(parser.error)  # type: ignore[method-assign]
    return parser


def list_fields_with_flags() -> list[str]:
    """The fields that Megatron's parser has flags for already: it must make none from them."""
    return [option.field for option in ALL_OPTIONS if option.is_ours and option.listed]


def _find_action(parser: ArgumentParser, option: Option) -> Action | None:
    for action in parser._actions:
        if option.flag in action.option_strings or action.dest == option.field:
            return action
    return None


def _explain_unknown(error: Callable[[str], NoReturn]) -> Callable[[str], NoReturn]:
    """Say of an unknown flag which overlay brings it, or that only MindSpeed has it."""

    def explain(message: str) -> NoReturn:
        flags = dict.fromkeys(word.partition("=")[0] for word in message.split())
        known = "unrecognized arguments" in message
        error("\n".join([message, *filter(None, map(_explain_flag, flags if known else ()))]))

    return explain


def _explain_flag(flag: str) -> str:
    overlays = {flag: overlay for overlay, flag in ABSENT_FIELDS.values()}
    if flag in overlays:
        return (
            f"{flag} belongs to {overlays[flag]}, which is not in this build: build with "
            f"`mindspeed-overlay build --feature {overlays[flag]}`"
        )
    feature = read_flags().get(flag, "")
    return feature and (
        f"{flag} belongs to MindSpeed's {feature}, which no overlay brings: leave it out "
        "(docs/migrating-from-mindspeed.md)"
    )


def process_args(args: Namespace) -> Namespace:
    """Give `args` of a foreign parser every option that it lacks, at its default.

    Returns:
        The same namespace.
    """
    for option in ALL_OPTIONS:
        if option.is_ours and not hasattr(args, option.field):
            setattr(args, option.field, option.default)
    return args
