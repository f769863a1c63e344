"""`apply`: the patched tree, to read or work in."""

from pathlib import Path
from typing import Any

import click

from mindspeed_overlay.cli import Workspace
from mindspeed_overlay.options import read_selection, release_option, selection_options
from mindspeed_overlay.plan import make_plan


@click.command(name="apply")
@click.argument("folder", type=click.Path(path_type=Path))
@release_option
@selection_options
@click.option("--source", "spec", default="pypi", show_default=True, metavar="SPEC")
@click.option("--tree", type=click.Choice(["core", "full"]), default="core", show_default=True)
@click.option("--offline", is_flag=True, help="Use cached downloads only.")
@click.pass_obj
def command(
    workspace: Workspace,
    /,
    folder: Path,
    release: str | None,
    spec: str,
    tree: str,
    offline: bool,
    **selection: Any,
) -> int:
    """Write the patched tree into FOLDER as a git repository, one commit per overlay.

    \b
    Examples:
      mindspeed-overlay apply work && git -C work log --stat
      mindspeed-overlay apply work --release core_v0.19.0 --feature fusions/fused-swiglu
    """
    from mindspeed_overlay.source import open_source
    from mindspeed_overlay.workrepo import write_repository

    pins = workspace.pins
    pinned = pins.get(release) if release else pins.default
    chosen = read_selection(**selection)
    plan = make_plan(workspace.overlays, pins, pinned, selection=chosen, tree=tree)
    source = open_source(
        pinned, spec=spec, tree=tree, offline=offline, progress=workspace.verbosity >= 0
    )
    write_repository(plan, source.files, folder.absolute())
    click.echo(folder)
    return 0
