"""`list`: the overlays of the set."""

import click

from mindspeed_overlay.cli import Workspace, print_json
from mindspeed_overlay.options import json_option
from mindspeed_overlay.overlay import Overlay


def describe_overlay(overlay: Overlay, tags: tuple[str, ...]) -> dict[str, object]:
    """An overlay as `list --json` prints it."""
    return {
        "id": overlay.id,
        "family": overlay.family,
        "level": overlay.level,
        "summary": overlay.summary,
        "releases": [tag for tag in tags if overlay.serves(tag, tags)],
        "options": [option.flag for option in overlay.options],
        "requires": list(overlay.requires),
        "conflicts": list(overlay.conflicts),
    }


@click.command(name="list")
@json_option
@click.pass_obj
def command(workspace: Workspace, as_json: bool) -> int:
    """List the overlays in the order they apply.

    \b
    Examples:
      mindspeed-overlay list
      mindspeed-overlay list --json | jq '.[].id'
    """
    tags = tuple(release.tag for release in workspace.pins.releases)
    rows = [describe_overlay(overlay, tags) for overlay in workspace.overlays.overlays]
    if as_json:
        print_json(rows)
        return 0
    from rich.console import Console
    from rich.table import Table

    table = Table("overlay", "level", "releases", "options", "summary", box=None)
    for row, overlay in zip(rows, workspace.overlays.overlays, strict=True):
        served = [tag for tag in tags if overlay.serves(tag, tags)]
        span = f"{_short(served[0])}-{_short(served[-1])}" if served else "none"
        flags = "\n".join(option.flag for option in overlay.options)
        table.add_row(overlay.id, str(overlay.level), span, flags, str(row["summary"]))
    Console().print(table)
    return 0


def _short(tag: str) -> str:
    return tag.removeprefix("core_v")
