"""`apply`: the patched tree, to read or work in."""

import sys
from pathlib import Path
from typing import Any

import click

from mindspeed_overlay.cli import Workspace
from mindspeed_overlay.options import (
    _complete_overlay,
    read_selection,
    release_option,
    selection_options,
)
from mindspeed_overlay.overlay import Overlay
from mindspeed_overlay.pins import Release
from mindspeed_overlay.plan import Plan, Selection, make_plan


@click.command(name="apply")
@click.argument("folder", type=click.Path(path_type=Path))
@release_option
@selection_options
@click.option("--source", "spec", default="pypi", show_default=True, metavar="SPEC")
@click.option("--tree", type=click.Choice(["core", "full"]), default="core", show_default=True)
@click.option(
    "--edit",
    metavar="ID",
    shell_complete=_complete_overlay,
    help="Make a tree in which to edit this overlay; `refresh --work FOLDER` exports the edits.",
)
@click.option("--offline", is_flag=True, help="Use cached downloads only.")
@click.pass_obj
def command(
    workspace: Workspace,
    /,
    folder: Path,
    release: str | None,
    spec: str,
    tree: str,
    edit: str | None,
    offline: bool,
    **selection: Any,
) -> int:
    """Write the patched tree into FOLDER as a git repository, one commit per overlay.

    With --edit the tree holds one overlay and what it requires, and the overlay's own files are
    links to it: what is edited there is edited in the overlay.

    \b
    Examples:
      mindspeed-overlay apply work && git -C work log --stat
      mindspeed-overlay apply work --release core_v0.19.0 --feature fusions/fused-swiglu
      mindspeed-overlay apply work --edit fusions/fused-swiglu
    """
    from mindspeed_overlay.source import open_source
    from mindspeed_overlay.workrepo import write_repository

    pins = workspace.pins
    pinned = pins.get(release) if release else pins.default
    chosen = read_selection(**selection)
    if edit:
        if chosen != Selection():
            raise click.UsageError(
                "--edit takes one overlay and what it requires: leave the others out."
            )
        chosen = Selection(features=(edit,))
    plan = make_plan(workspace.overlays, pins, pinned, selection=chosen, tree=tree)
    source = open_source(
        pinned,
        spec=spec,
        tree=tree,
        python=_choose_python(pinned),
        offline=offline,
        progress=workspace.verbosity >= 0,
    )
    links = _find_links(workspace.overlays.get(edit), plan) if edit else {}
    write_repository(
        plan,
        source.files,
        folder.absolute(),
        links=links,
        edits=edit or "",
        overlays_folder=str(workspace.overlays_folder),
    )
    click.echo(folder)
    return 0


def _choose_python(release: Release) -> str | None:
    """This Python, or the oldest the release is for: a tree can be read and edited with any."""
    from packaging.specifiers import SpecifierSet

    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    return None if SpecifierSet(release.python).contains(here) else release.python[2:]


def _find_links(overlay: Overlay, plan: Plan) -> dict[str, Path]:
    """The overlay's own files of this release, by path in the tree."""
    found = {}
    for since, files in overlay.file_sets.items():
        root = overlay.folder / (f"files@{since}" if since else "files")
        for owner, path, data in plan.files:
            if owner == overlay.id and files.get(path) is data and (root / path).is_file():
                found[path] = root / path
    return found
