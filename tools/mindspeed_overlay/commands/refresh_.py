"""`refresh`: write patches anew, canonical, from an edited work tree or from their own text."""

import datetime
from pathlib import Path
from typing import Any

import click

from mindspeed_overlay.cli import Workspace, print_json, report_error
from mindspeed_overlay.errors import Problem, VerifyError
from mindspeed_overlay.options import _complete_overlay, json_option


@click.command(name="refresh")
@click.argument("ids", metavar="[ID]...", nargs=-1, shell_complete=_complete_overlay)
@click.option(
    "--work",
    metavar="DIR",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Export the edits of this tree, which `apply DIR --edit ID` made.",
)
@click.option("--check", is_flag=True, help="Change nothing; fail if anything would change.")
@click.option("--subject", default="", help="With --work: the Subject of patches that are new.")
@click.option("--reason", default="", help="With --work: the reason in patches that are new.")
@click.option(
    "--drop",
    metavar="PATH",
    multiple=True,
    help="With --work: this target's patch may go, for its edits are gone; repeatable.",
)
@click.option(
    "--source",
    "spec",
    default="pypi",
    show_default=True,
    metavar="SPEC",
    help="As in `build`; a git source covers the full tree.",
)
@click.option("--offline", is_flag=True, help="Use cached downloads only.")
@json_option
@click.pass_obj
def command(
    workspace: Workspace,
    /,
    ids: tuple[str, ...],
    work: Path | None,
    check: bool,
    subject: str,
    reason: str,
    drop: tuple[str, ...],
    spec: str,
    offline: bool,
    as_json: bool,
) -> int:
    """Write the patches of overlays anew: least context, symbols, Base-Blob; headers are kept.

    With --work the edits of a tree that `apply DIR --edit ID` made become the overlay's patches for
    all releases that its form serves. Files that are new there become the overlay's own. Nothing is
    deleted without --drop, and nothing of another overlay is touched.

    \b
    Examples:
      mindspeed-overlay apply work --edit fusions/fused-swiglu
      mindspeed-overlay refresh --work work
      mindspeed-overlay refresh fusions/fused-swiglu
      mindspeed-overlay refresh --check
    """  # fmt: skip
    from mindspeed_overlay.drift.survey import Survey

    if check and work:
        raise click.UsageError("--check looks at the overlays as they are; leave --work out.")
    survey = Survey(workspace.overlays, workspace.pins, spec, offline)
    if work:
        from mindspeed_overlay.refresh.export import NewPatch

        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        new = NewPatch(subject, reason, today)
        return _export(workspace, survey, work.absolute(), ids, new, set(drop), as_json=as_json)
    if not ids and not check:
        raise click.UsageError("name an ID, or give --work DIR, or --check.")
    return _rewrite(workspace, survey, ids, check=check, as_json=as_json)


def _rewrite(
    workspace: Workspace, survey: Any, ids: tuple[str, ...], *, check: bool, as_json: bool
) -> int:
    from mindspeed_overlay.errors import ApplyError
    from mindspeed_overlay.refresh.sets import refresh_overlay

    chosen = [workspace.overlays.get(i) for i in ids] or list(workspace.overlays.overlays)
    results = [refresh_overlay(survey, overlay) for overlay in chosen]
    due = [rewrite for result in results for rewrite in result.rewrites if rewrite.is_due]
    problems = [problem for result in results for problem in result.problems]
    if problems:
        raise ApplyError(*problems)
    for overlay, result in zip(chosen, results, strict=True):
        for name in result.unseen:
            workspace.note(f"{overlay.id}: {name}: not looked at, it needs a git source")
    if not check:
        _write(workspace, due)
    files = [f"{r.overlay}/patches/{r.since}/{r.name}" for r in due]
    code = 9 if check and due else 0
    if as_json:
        print_json({"ok": code == 0, "due" if check else "written": files})
        return code
    for file in files:
        click.echo(file)
    if check and due:
        hint = "run `mindspeed-overlay refresh ID`"
        message = f"{len(due)} patches are not canonical or not up to date"
        report_error(VerifyError(Problem(code="E909", message=message, hint=hint)))
    return code


def _export(
    workspace: Workspace,
    survey: Any,
    root: Path,
    ids: tuple[str, ...],
    new: Any,
    drop: set[str],
    *,
    as_json: bool,
) -> int:
    from mindspeed_overlay.refresh.export import export_worktree
    from mindspeed_overlay.staging import write_atomically
    from mindspeed_overlay.worktree import read_worktree

    made = read_worktree(root)
    if not made.edits:
        raise click.UsageError(f"{root} was not made with --edit.")
    if ids and ids != (made.edits,):
        raise click.UsageError(f"{root} edits {made.edits}.")
    overlay = workspace.overlays.get(made.edits)
    exported = export_worktree(survey, overlay, root, made, new=new, drop=drop)
    due = [rewrite for rewrite in exported.rewrites if rewrite.is_due]
    _write(workspace, due)
    since = overlay.patch_since(made.release, survey.order)
    for name in exported.dropped:
        (overlay.folder / "patches" / since / name).unlink()
    folder = overlay.folder / _files_folder(overlay, made.release, survey.order)
    for path, data in exported.new_files.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(place, data)
        (root / path).unlink()
        (root / path).symlink_to(place)
    for sentence in exported.notes:
        workspace.note(sentence)
    written = [f"patches/{r.since}/{r.name}" for r in due]
    added = [f"{folder.name}/{path}" for path in exported.new_files]
    if as_json:
        table = {"overlay": overlay.id, "written": written, "added": added}
        print_json({"ok": True, **table, "dropped": list(exported.dropped)})
        return 0
    for verb, names in (
        ("wrote", written), ("added", added), ("dropped", exported.dropped)
    ):  # fmt: skip
        for name in names:
            click.echo(f"{verb} {overlay.id}/{name}")
    return 0


def _files_folder(overlay: Any, tag: str, order: tuple[str, ...]) -> str:
    """`files`, or the `files@<since>` whose set serves a release."""
    shown = overlay.files_for(tag, order)
    since = next((s for s, files in overlay.file_sets.items() if files is shown), "")
    return f"files@{since}" if since else "files"


def _write(workspace: Workspace, rewrites: Any) -> None:
    from mindspeed_overlay.staging import write_atomically

    for rewrite in rewrites:
        folder = workspace.overlays.get(rewrite.overlay).folder / "patches" / rewrite.since
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / rewrite.name, rewrite.new)
