"""Files that a build gets besides those in overlay folders: the tables of its options and hooks.

`mindspeed/option_table.py` and `mindspeed/hook_table.py` are data only. They belong to the overlays
`base/options` and `base/hooks`, whose code reads them, so a build without those has none.
"""

import pprint
from collections.abc import Iterable, Mapping
from typing import Any

from mindspeed_overlay.hook import HOOK_TABLE_PATH, HOOKS_OVERLAY, write_hook_table
from mindspeed_overlay.option import Option
from mindspeed_overlay.overlay import OPTIONS_OVERLAY, Overlay

TABLE_PATH = "mindspeed/option_table.py"

GENERATED = {TABLE_PATH: OPTIONS_OVERLAY, HOOK_TABLE_PATH: HOOKS_OVERLAY}
"""Each generated file and the overlay that it belongs to."""

_HEAD = '''\
"""The options of this build; written by mindspeed-overlay from the overlay.toml files."""

RELEASE = {release!r}

# (id, level, whether optimization_level switches it on, summary) of the overlays in this build.
OVERLAYS = {overlays}

# Of the overlays in this build. `native`: Megatron itself does it, here under the name in `maps`.
OPTIONS = {options}

# Of the overlays that are not in this build: (overlay, flag, field).
ABSENT = {absent}
'''


def generate_files(
    chosen: Iterable[Overlay], *, known: Iterable[Overlay], tag: str, order: tuple[str, ...]
) -> dict[str, bytes]:
    """The generated files of a build, by path; empty without the overlay that reads them.

    Args:
        chosen: the overlays of the build.
        known: all overlays of the set, in series order.
        tag: the release.
        order: all releases, oldest first.
    """
    ids, known = {overlay.id for overlay in chosen}, tuple(known)
    files = {}
    if OPTIONS_OVERLAY in ids:
        files[TABLE_PATH] = _write_option_table(ids, known, tag=tag, order=order)
    if HOOKS_OVERLAY in ids:
        hooks = [(o.id, hook) for o in known if o.id in ids for hook in o.hooks]
        files[HOOK_TABLE_PATH] = write_hook_table(hooks)
    return files


def _write_option_table(
    ids: set[str], known: tuple[Overlay, ...], *, tag: str, order: tuple[str, ...]
) -> bytes:
    overlays = [(o.id, o.level, o.by_level, o.summary) for o in known if o.id in ids]
    rows = [
        _row(overlay.id, option, native=option.is_upstream(tag, order))
        for overlay in known
        if overlay.id in ids
        for option in overlay.options
    ]
    absent = [
        (overlay.id, option.flag, option.field)
        for overlay in known
        if overlay.id not in ids
        for option in overlay.options
        if not option.extends and (option.maps or not option.is_upstream(tag, order))
    ]
    text = _HEAD.format(
        release=tag,
        overlays=_literal(overlays),
        options=_literal(rows),
        absent=_literal(absent),
    )
    return text.encode()


def _row(overlay: str, option: Option, *, native: bool) -> Mapping[str, Any]:
    # Of a field that is Megatron's own, Megatron knows the rules.
    ours = not native or bool(option.maps)
    return {
        "overlay": overlay,
        "flag": option.flag,
        "field": option.field,
        "config": option.config,
        "type": option.type,
        # A class attribute too, so immutable.
        "default": tuple(option.default) if isinstance(option.default, list) else option.default,
        "choices": option.choices if ours else (),
        "minimum": option.minimum if ours else None,
        "requires": option.requires if ours else (),
        "conflicts": option.conflicts if ours else (),
        "checks": option.checks if ours else (),
        "native": native,
        "maps": dict(option.maps) if native else {},
        "extends": option.extends,
        "listed": option.flag_owner == "upstream",
        "help": option.help,
    }


def _literal(rows: list[Any]) -> str:
    lines = [pprint.pformat(row, width=10_000, sort_dicts=False).replace("\n", " ") for row in rows]
    return "(\n" + "".join(f"    {line},\n" for line in lines) + ")"
