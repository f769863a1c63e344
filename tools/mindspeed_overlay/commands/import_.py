"""`import`: turn somebody's patches into an overlay."""

import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mindspeed_overlay.cli import Workspace, print_json
from mindspeed_overlay.options import json_option

if TYPE_CHECKING:
    from mindspeed_overlay.port.trees import Tree


@click.command(name="import")
@click.argument("origin", metavar="DIR|FILE|BRANCH")
@click.option(
    "--monkey-patches",
    "monkey",
    is_flag=True,
    help="DIR is a source tree that patches Megatron at run time: draft patches from it.",
)
@click.option("--id", "overlay_id", metavar="ID", required=True, help="Of the overlay to make.")
@click.option("--from", "base", metavar="TAG", default="", help="The release it was made for.")
@click.option(
    "--source",
    "spec",
    default="pypi",
    show_default=True,
    metavar="SPEC",
    help="As in `build`; with git:PATH any commit for --from, and a branch to import.",
)
@click.option("--offline", is_flag=True, help="Use cached downloads only.")
@json_option
@click.pass_obj
def command(
    workspace: Workspace,
    /,
    origin: str,
    monkey: bool,
    overlay_id: str,
    base: str,
    spec: str,
    offline: bool,
    as_json: bool,
) -> int:
    """Turn a diff, a folder of diffs or a git branch into an overlay.

    Edits become canonical patches with whole headers, new files go to files/. Deletions, renames,
    binary files and files outside the packages are left out and listed.

    With --monkey-patches, each function that the tree replaces at run time by an edited copy (70 %
    alike or more) becomes a draft of that edit; what the gate finds in it is listed.

    \b
    Examples:
      mindspeed-overlay --overlays mine import megatron.patch --id mine/all --from core_v0.16.1
      mindspeed-overlay --overlays mine import patches/ --id mine/all --from core_v0.15.0rc5 \\
        --source git:../Megatron-LM
      mindspeed-overlay --overlays mine import my-branch --id mine/all --from core_v0.16.1 \\
        --source git:../Megatron-LM
      mindspeed-overlay --overlays mine import --monkey-patches ../MindSpeed --id mine/drafts \\
        --from core_v0.12.1
    """
    from mindspeed_overlay.port.imports import (
        import_diffs,
        read_branch,
        read_folder,
        write_imported,
    )
    from mindspeed_overlay.port.sources import check_id, find_repository, open_base

    check_id(overlay_id)
    tree = open_base(workspace, base, spec=spec, offline=offline)
    repository = find_repository(spec)
    if monkey:
        return _draft(workspace, Path(origin), tree, overlay_id, as_json=as_json)
    if Path(origin).exists() or repository is None:
        diffs = [*read_folder(Path(origin))]
    else:
        diffs = [*read_branch(repository, tree.release.commit, origin)]
    imported = import_diffs(
        diffs,
        tree.files,
        overlay=overlay_id,
        tag=tree.tag,
        today=datetime.date.today().isoformat(),
        origin=Path(origin).name,
    )
    written = write_imported(imported, workspace.overlays_folder, overlay=overlay_id, tag=tree.tag)
    if as_json:
        print_json(
            {
                "ok": True,
                "overlay": overlay_id,
                "release": tree.tag,
                "patches": sorted(imported.patches),
                "files": sorted(imported.files),
                "left_out": [{"path": p, "reason": why} for p, why in imported.left_out],
                "written": [str(path) for path in written],
            }
        )
        return 0
    for path, why in imported.left_out:
        workspace.note(f"left out {path}: {why}")
    click.echo(f"{overlay_id}: {len(imported.patches)} patches, {len(imported.files)} new files")
    for place in written:
        click.echo(f"wrote {place}")
    return 0


def _draft(
    workspace: Workspace, folder: Path, tree: "Tree", overlay_id: str, *, as_json: bool
) -> int:
    from mindspeed_overlay.drift.monkey import read_monkey_patches
    from mindspeed_overlay.port.drafts import draft_patches, package_of
    from mindspeed_overlay.port.imports import Imported, write_imported, write_patches

    if not folder.is_dir():
        raise click.UsageError(f"--monkey-patches needs a folder, and {folder} is none.")
    found = draft_patches(
        read_monkey_patches(folder),
        tree.files,
        package=package_of(folder),
        python=tree.release.python.removeprefix(">="),
    )
    patches = write_patches(
        found.edited,
        tree.files,
        overlay=overlay_id,
        tag=tree.tag,
        today=datetime.date.today().isoformat(),
        origin=folder.resolve().name,
    )
    imported = Imported(patches=patches)
    written = write_imported(imported, workspace.overlays_folder, overlay=overlay_id, tag=tree.tag)
    if as_json:
        report = found.to_json() | {"overlay": overlay_id, "release": tree.tag}
        print_json({"ok": True, **report, "written": [str(path) for path in written]})
        return 0
    for name, why in found.left_out:
        workspace.note(f"left out {name}: {why}")
    for draft in found.drafts:
        click.echo(draft.describe())
        for problem in draft.problems:
            click.echo(f"  {problem.code} {problem.message}")
    bad = sum(bool(draft.problems) for draft in found.drafts)
    click.echo(
        f"{overlay_id}: {len(found.drafts)} drafts in {len(patches)} patches; the gate passes "
        f"{len(found.drafts) - bad}, and finds something in {bad}; {len(found.left_out)} left out"
    )
    for place in written:
        click.echo(f"wrote {place}")
    return 0
