"""`show`: one overlay in full."""

import click

from mindspeed_overlay.cli import Workspace, print_json
from mindspeed_overlay.commands.list_ import describe_overlay
from mindspeed_overlay.options import json_option, overlay_argument


@click.command(name="show")
@overlay_argument
@json_option
@click.pass_obj
def command(workspace: Workspace, overlay_id: str, as_json: bool) -> int:
    """Show one overlay: options, releases, new files, and the patches each release gets.

    \b
    Example:
      mindspeed-overlay show fusions/fused-swiglu
    """
    overlay = workspace.overlays.get(overlay_id)
    tags = tuple(release.tag for release in workspace.pins.releases)
    shown = describe_overlay(overlay, tags)
    shown["torch_npu"] = overlay.torch_npu
    shown["upstream_status"] = overlay.upstream_status
    shown["remove_when"] = overlay.remove_when
    shown["option_table"] = [
        {"flag": o.flag, "field": o.field, "config": o.config, "type": o.type,
         "default": o.default, "help": o.help}
        for o in overlay.options
    ]  # fmt: skip
    shown["files"] = {
        tag: sorted(overlay.files_for(tag, tags)) for tag in tags if overlay.serves(tag, tags)
    }
    shown["patches"] = {
        tag: {
            "since": overlay.patch_since(tag, tags),
            "names": sorted(overlay.patches_for(tag, tags)),
        }
        for tag in tags
        if overlay.serves(tag, tags)
    }
    if as_json:
        print_json(shown)
        return 0
    click.echo(f"{overlay.id} (level {overlay.level}): {overlay.summary}\n")
    for title, value in (
        ("requires", ", ".join(overlay.requires)),
        ("conflicts", ", ".join(overlay.conflicts)),
        ("releases", ", ".join(tag for tag in tags if overlay.serves(tag, tags))),
        ("torch_npu", overlay.torch_npu),
        ("upstream status", overlay.upstream_status),
        ("remove when", overlay.remove_when),
        ("folder", str(overlay.folder)),
    ):
        if value:
            click.echo(f"  {title}: {value}")
    for option in overlay.options:
        click.echo(
            f"\n  {option.flag} ({option.config}.{option.field}: {option.type} = {option.default})"
        )
        click.echo(f"      {option.help}")
    for title, sets in (("files", overlay.file_sets), ("patches", overlay.patch_sets)):
        for since, names in sets.items():
            click.echo(f"\n  {title}{' since ' + since if since else ''}:")
            for name in sorted(names):
                click.echo(f"      {name}")
    return 0
