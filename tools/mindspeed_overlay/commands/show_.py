"""`show`: one overlay in full."""

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click

from mindspeed_overlay.cli import Workspace, print_json
from mindspeed_overlay.commands.list_ import describe_overlay
from mindspeed_overlay.feature_docs import describe_features, load_originals
from mindspeed_overlay.operator_docs import describe_operators, find_operators
from mindspeed_overlay.option import Option
from mindspeed_overlay.option_docs import describe_options
from mindspeed_overlay.options import json_option, overlay_argument


def _option_row(option: Option) -> dict[str, Any]:
    return {key: list(v) if isinstance(v, tuple) else v for key, v in asdict(option).items()}


@click.command(name="show")
@partial(overlay_argument, required=False)
@click.option("--options", "only_options", is_flag=True, help="The options of ID, or of all.")
@click.option("--features", "only_features", is_flag=True, help="MindSpeed's features, by state.")
@click.option(
    "--operators",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write the pages of mindspeed.ops into DIR.",
)
@json_option
@click.pass_obj
def command(
    workspace: Workspace,
    overlay_id: str | None,
    only_options: bool,
    only_features: bool,
    operators: Path | None,
    as_json: bool,
) -> int:
    """Show one overlay: options, releases, new files, and the patches each release gets.

    \b
    Examples:
      mindspeed-overlay show fusions/fused-swiglu
      mindspeed-overlay show --options > docs/options.md
      mindspeed-overlay show --features > docs/features.md
      mindspeed-overlay show --operators docs/ops
    """
    tags = tuple(release.tag for release in workspace.pins.releases)
    overlays = workspace.overlays
    if operators is not None:
        operators.mkdir(parents=True, exist_ok=True)
        for name, page in describe_operators(find_operators(overlays.overlays, tags)).items():
            (operators / name).write_text(page, "utf-8")
        return 0
    if only_features:
        click.echo(describe_features(load_originals(), overlays.overlays, tags), nl=False)
        return 0
    if only_options:
        chosen = [overlays.get(overlay_id)] if overlay_id else list(overlays.overlays)
        if as_json:
            print_json({o.id: [_option_row(x) for x in o.options] for o in chosen if o.options})
        else:
            click.echo(describe_options(chosen, tags), nl=False)
        return 0
    if overlay_id is None:
        raise click.UsageError("give an ID, --options, --features or --operators.")
    overlay = overlays.get(overlay_id)
    shown = describe_overlay(overlay, tags)
    shown["torch_npu"] = overlay.torch_npu
    shown["upstream_status"] = overlay.upstream_status
    shown["remove_when"] = overlay.remove_when
    shown["option_table"] = [_option_row(option) for option in overlay.options]
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
