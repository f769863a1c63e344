"""docs/options.md: every option of an overlay set (`mindspeed-overlay show --options`)."""

from collections.abc import Iterable, Iterator

from mindspeed_overlay.option import Option
from mindspeed_overlay.overlay import Overlay

_HEAD = """\
# Options

Written by `mindspeed-overlay show --options > docs/options.md` from the `[[option]]` tables in
`overlays/`: edit those, not this page.

Each option is a config field and a flag. A field is keyword-only, and may be set on the config at
any time before the model is built; the flag is in Megatron's own parser. With every option at its
default, Megatron computes what it computes without overlays, bit for bit. A value that cannot be is
an error that names the option, the value, the rule and the remedy. `python -m mindspeed` lists the
options of an installed build, and `mindspeed.status()` what is on and why.
"""


def describe_options(overlays: Iterable[Overlay], tags: tuple[str, ...]) -> str:
    """The page, in Markdown.

    Args:
        overlays: in series order.
        tags: all releases, oldest first.
    """
    parts = [_HEAD]
    for overlay in overlays:
        if not overlay.options:
            continue
        served = [tag.removeprefix("core_v") for tag in tags if overlay.serves(tag, tags)]
        span = "all pinned releases" if len(served) == len(tags) else ", ".join(served)
        parts.append(f"\n## {overlay.id}\n\n{overlay.summary} (level {overlay.level}, {span}).\n")
        parts += [_describe(option) for option in overlay.options]
    return "".join(parts)


def _describe(option: Option) -> str:
    head = f"\n### `{option.flag}`\n\n`{option.config}.{option.field}`: {option.type}"
    default = "unset" if option.default is None else f"`{_show(option.default)}`"
    rules = "".join(f"- {rule}\n" for rule in _list_rules(option))
    known = "one of Megatron's" if option.extends else default
    return f"{head}, default {known}. {option.help}\n" + (f"\n{rules}" if rules else "")


def _list_rules(option: Option) -> Iterator[str]:
    if option.extends:
        yield f"Megatron's own option; adds {_join(option.choices)}"
    elif option.choices:
        yield f"one of {_join(option.choices)}"
    if option.minimum is not None:
        yield f"at least {option.minimum:g}"
    if option.requires:
        yield f"needs {_join(option.requires)}"
    if option.conflicts:
        yield f"not together with {_join(option.conflicts)}"
    if option.owner != "ours":
        since = option.owner.rpartition(" ")[2].removeprefix("core_v")
        if option.maps:
            value = f"={_show(option.maps['value'])}" if "value" in option.maps else ""
            yield f"from core {since} on sets Megatron's own `{option.maps['field']}{value}`"
        else:
            yield f"from core {since} on Megatron's own option"
    if option.checks:
        yield f"further rules: {_join(option.checks)}"


def _join(values: Iterable[object]) -> str:
    return ", ".join(f"`{_show(value)}`" for value in values)


def _show(value: object) -> str:
    """A value as a condition or a command line writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
