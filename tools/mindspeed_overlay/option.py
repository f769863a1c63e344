"""One `[[option]]` table of an `overlay.toml`: a config field, its flag, and its rules.

Reading checks the table by itself and options against each other; what a release does with them is
in `generate`.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

CONFIGS: Mapping[str, tuple[str, ...]] = {
    "ModelParallelConfig": ("ModelParallelConfig",),
    "TransformerConfig": ("TransformerConfig", "ModelParallelConfig"),
    "OptimizerConfig": ("OptimizerConfig",),
    "DistributedDataParallelConfig": ("DistributedDataParallelConfig",),
}
"""Config classes that gain fields, each with the classes whose fields it has."""

_KINDS: Mapping[str, tuple[type, ...]] = {
    "bool": (bool,),
    "int": (int,),
    "float": (float, int),
    "str": (str,),
    "list[int]": (int,),
    "list[float]": (float, int),
    "list[str]": (str,),
}
_TUPLES = ("choices", "requires", "conflicts", "checks")
_FLAG = re.compile(r"--[a-z0-9][a-z0-9-]*")
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_CONDITION = re.compile(r"([a-z][a-z0-9_]*)(?:(!?=)([^=]+))?")
_CHECK = re.compile(r"mindspeed(\.\w+)+:\w+")
_UPSTREAM = re.compile(r"upstream since (\S+)")

Wrong = Callable[..., None]
"""Takes a message (and a hint) on what is wrong."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """A config field and its flag."""

    flag: str
    field: str
    config: str
    type: str
    help: str
    default: Any = None
    choices: tuple[Any, ...] = ()
    requires: tuple[str, ...] = ()
    """Conditions on the same config that must hold while the option is on: `field`, `field=value`,
    `field=one|other`, `field!=value`."""
    conflicts: tuple[str, ...] = ()
    """Conditions that must not hold while it is on."""
    minimum: float | None = None
    checks: tuple[str, ...] = ()
    """`module:function` rules for what conditions cannot say; imported only while it is on."""
    owner: str = "ours"
    """`ours`, or `upstream since TAG`: from that release on Megatron has field and flag itself."""
    flag_owner: str = "ours"
    """`upstream`: the field is ours, and Megatron's parser lists a flag for it by hand."""
    maps: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Where Megatron has it under another name: that `field`, and the `value` that means the same
    (the option's own if not given). The option keeps its field and flag, and sets Megatron's."""
    extends: bool = False
    """Megatron has field and flag; the `choices` here are added to its own."""

    def is_upstream(self, tag: str, order: tuple[str, ...]) -> bool:
        """Whether Megatron itself has the field at `tag`; `order` lists all tags, oldest first."""
        match = _UPSTREAM.fullmatch(self.owner)
        return match is not None and order.index(tag) >= order.index(match[1])


def read_option(table: Mapping[str, Any], *, tags: tuple[str, ...], wrong: Wrong) -> Option | None:
    """Read one `[[option]]` table, saying everything that is wrong with it."""
    name = table.get("flag", "")
    known = {f.name for f in fields(Option)}
    for key in sorted(set(table) - known):
        wrong(f"[[option]] {name}: unknown key {key!r}")
    missing = [key for key in ("flag", "field", "config", "type", "help") if key not in table]
    for key in missing:
        wrong(f"[[option]] {name}: {key} is missing")
    for key in _TUPLES:
        if not isinstance(table.get(key, []), list):
            wrong(f"{name}: {key} must be a list")
            missing.append(key)
    if missing:
        return None
    values: dict[str, Any] = {
        k: tuple(v) if k in _TUPLES else v for k, v in table.items() if k in known
    }
    option = Option(**values)
    for message in _find_faults(option, tags):
        wrong(message)
    return option


def _find_faults(option: Option, tags: tuple[str, ...]) -> Iterable[str]:
    flag = option.flag
    if not _FLAG.fullmatch(flag):
        yield f"[[option]] flag {flag!r} must look like --use-fused-swiglu"
    if not _NAME.fullmatch(option.field):
        yield f"{flag}: field {option.field!r} must look like use_fused_swiglu"
    if option.config not in CONFIGS:
        yield f"{flag}: config must be one of {', '.join(CONFIGS)}"
    if option.type not in _KINDS:
        yield f"{flag}: type must be one of {', '.join(_KINDS)}"
    else:
        yield from _find_value_faults(option)
    for condition in (*option.requires, *option.conflicts):
        if not _CONDITION.fullmatch(condition):
            yield f"{flag}: cannot read the condition {condition!r}, write field=value"
    for check in option.checks:
        if not _CHECK.fullmatch(check):
            yield f"{flag}: check {check!r} must look like mindspeed.core.module:function"
    match = _UPSTREAM.fullmatch(option.owner)
    if option.owner != "ours" and (match is None or match[1] not in tags):
        yield f"{flag}: owner must be `ours` or `upstream since TAG` with a pinned release"
    if option.flag_owner not in ("ours", "upstream"):
        yield f"{flag}: flag_owner must be `ours` or `upstream`"
    if option.extends and not option.choices:
        yield f"{flag}: extends needs the choices that are new"
    if option.maps and ("field" not in option.maps or set(option.maps) - {"field", "value"}):
        yield f"{flag}: maps must be {{ field = ..., value = ... }}"
    if option.maps and match is None:
        yield f"{flag}: maps needs an owner `upstream since TAG`"


def _find_value_faults(option: Option) -> Iterable[str]:
    flag, default = option.flag, option.default
    kinds = _KINDS[option.type]
    is_list = option.type.startswith("list")
    if default is not None:
        items = default if is_list and isinstance(default, list) else [default]
        if isinstance(default, list) != is_list or not all(_is_a(item, kinds) for item in items):
            yield f"{flag}: default {default!r} is no {option.type}"
        elif option.choices and default not in option.choices and not option.extends:
            yield f"{flag}: default {default!r} is not among its choices"
    if option.type == "bool" and option.choices:
        yield f"{flag}: a bool has no choices"
    if not all(_is_a(choice, kinds) for choice in option.choices):
        yield f"{flag}: every choice must be {option.type}"
    if option.minimum is not None and option.type not in ("int", "float"):
        yield f"{flag}: minimum is for int and float"


def _is_a(value: Any, kinds: tuple[type, ...]) -> bool:
    return isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))


def find_clashes(options: Iterable[tuple[str, Option]]) -> list[tuple[str, str]]:
    """Options that share a flag or a field, and conditions on a field of another config.

    Args:
        options: (overlay id, option) of a whole set.

    Returns:
        (overlay id, message) of each.
    """
    clashes: list[tuple[str, str]] = []
    owners: dict[str, str] = {}
    found = list(options)
    homes = {option.field: option.config for _, option in found}
    for overlay, option in found:
        names = () if option.extends else (option.flag, f"{option.config}.{option.field}")
        for name in names:
            if name in owners:
                clashes.append((overlay, f"{name} is an option of {owners[name]} too"))
            owners[name] = overlay
        for condition in (*option.requires, *option.conflicts):
            match = _CONDITION.fullmatch(condition)
            home = homes.get(match[1]) if match else None
            if home and home not in CONFIGS.get(option.config, (home,)):
                message = f"{option.flag}: {condition!r} is of {home}, {option.config} has no such"
                clashes.append((overlay, message))
    return clashes


def find_missing_checks(
    options: Iterable[tuple[str, Option]], files: Mapping[str, bytes]
) -> list[tuple[str, str]]:
    """Rule functions that no overlay brings.

    Args:
        options: (overlay id, option) of a whole set.
        files: the new files of the whole set, by path.

    Returns:
        (overlay id, message) of each.
    """
    missing = []
    for overlay, option in options:
        for check in option.checks:
            module, _, name = check.partition(":")
            path = module.replace(".", "/") + ".py"
            if not re.search(rb"^def %s\(" % name.encode(), files.get(path, b""), re.MULTILINE):
                missing.append((overlay, f"{option.flag}: no {name} in {path}"))
    return missing
