"""`import`: turn somebody's patches into an overlay."""

import datetime
from pathlib import Path

import click

from mindspeed_overlay.cli import Workspace, print_json
from mindspeed_overlay.options import json_option


@click.command(name="import")
@click.argument("origin", metavar="DIR|FILE|BRANCH")
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
    overlay_id: str,
    base: str,
    spec: str,
    offline: bool,
    as_json: bool,
) -> int:
    """Turn a diff, a folder of diffs or a git branch into an overlay.

    Edits become canonical patches with whole headers, new files go to files/. Deletions, renames,
    binary files and files outside the packages are left out and listed.

    \b
    Examples:
      mindspeed-overlay --overlays mine import megatron.patch --id mine/all --from core_v0.16.1
      mindspeed-overlay --overlays mine import patches/ --id mine/all --from core_v0.15.0rc5 \\
        --source git:../Megatron-LM
      mindspeed-overlay --overlays mine import my-branch --id mine/all --from core_v0.16.1 \\
        --source git:../Megatron-LM
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
