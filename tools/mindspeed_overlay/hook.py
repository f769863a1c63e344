"""One `[[hook]]` table of an `overlay.toml`: a function of the overlay at a hook point.

The build gathers them into `mindspeed/hook_table.py`, in series order, which is the order in which
features at one point are asked.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

POINTS = (
    "activation",
    "attention",
    "batch",
    "block",
    "dispatcher",
    "groups",
    "layer",
    "optimizer",
    "weight_grad",
)
"""The points that `mindspeed.core.hooks` has."""

HOOKS_OVERLAY = "base/hooks"
"""Its code reads the generated table of hooks."""

HOOK_TABLE_PATH = "mindspeed/hook_table.py"

_HEAD = '''\
"""The features of this build at each hook point; written by mindspeed-overlay."""

# (point, overlay, function, conditions): a feature is asked while one of its conditions holds.
# A condition is a config field and the values that it may have; no value means any true one.
HOOKS = {hooks}
'''

_FUNCTION = re.compile(r"mindspeed(\.\w+)+:\w+")
_CONDITION = re.compile(r"([a-z][a-z0-9_]*)(?:=([^=]+))?")

Wrong = Callable[..., None]


@dataclass(frozen=True, kw_only=True)
class Hook:
    """A function at a hook point, asked while one of `when` holds."""

    point: str
    function: str
    when: tuple[str, ...]
    """`field`, `field=value` or `field=one|other`, on the config at hand."""


def read_hook(table: Mapping[str, Any], *, wrong: Wrong) -> Hook | None:
    """Read one `[[hook]]` table, saying everything that is wrong with it."""
    names = {f.name for f in fields(Hook)}
    faults = [f"unknown key {key!r}" for key in sorted(set(table) - names)]
    faults += [f"{key} is missing" for key in sorted(names - set(table))]
    if not faults:
        faults = list(_find_faults(table))
    for fault in faults:
        wrong(f"[[hook]] {table.get('point', '')}: {fault}")
    if faults:
        return None
    return Hook(point=table["point"], function=table["function"], when=tuple(table["when"]))


def _find_faults(table: Mapping[str, Any]) -> Iterable[str]:
    if table["point"] not in POINTS:
        yield f"point must be one of {', '.join(POINTS)}"
    if not _FUNCTION.fullmatch(str(table["function"])):
        yield f"function {table['function']!r} must look like mindspeed.core.module:function"
    when = table["when"]
    if not isinstance(when, list) or not when:
        yield "when must list at least one condition: a feature that is off is not imported"
    elif not all(isinstance(c, str) and _CONDITION.fullmatch(c) for c in when):
        yield f"when: cannot read {when!r}, write field or field=value"


def write_hook_table(hooks: Iterable[tuple[str, Hook]]) -> bytes:
    """The text of `mindspeed/hook_table.py`.

    Args:
        hooks: (overlay id, hook) of the overlays of a build, in series order.
    """
    rows = [
        (hook.point, overlay, hook.function, tuple(_split(condition) for condition in hook.when))
        for overlay, hook in hooks
    ]
    lines = "".join(f"    {row!r},\n" for row in rows)
    return _HEAD.format(hooks=f"(\n{lines})" if rows else "()").encode()


def _split(condition: str) -> tuple[str, tuple[str, ...]]:
    match = _CONDITION.fullmatch(condition)
    assert match is not None, condition  # read_hook has seen it
    return match[1], tuple(match[2].split("|")) if match[2] else ()
