"""`check`: every overlay on every release it claims."""

import os

import click

from mindspeed_overlay.cli import Workspace, print_json, report_error
from mindspeed_overlay.errors import OverlayError
from mindspeed_overlay.options import json_option, release_option


@click.command(name="check")
@release_option
@click.option(
    "--source", "spec", default="pypi", show_default=True, metavar="SPEC", help="As in `build`."
)
@click.option("--offline", is_flag=True, help="Use cached downloads only.")
@click.option("--jobs", type=click.IntRange(1), default=os.cpu_count() or 1, show_default=True)
@json_option
@click.pass_obj
def command(
    workspace: Workspace, release: str | None, spec: str, offline: bool, jobs: int, as_json: bool
) -> int:
    """Check definitions, patch headers, lint, a dry apply with gate, and drift on every release.

    Each overlay is applied alone with its requirements, then all together, on each (release, tree)
    pair. The full tree needs a git source; without one it is reported as not checked.

    \b
    Examples:
      mindspeed-overlay check
      mindspeed-overlay check --release core_v0.19.0 --json
      mindspeed-overlay --overlays my-overlays check --source git:../Megatron-LM
    """
    from mindspeed_overlay.check import Checked, check_releases

    pins, overlays = workspace.pins, workspace.overlays
    releases = [pins.get(release)] if release else list(pins.releases)
    trees = ["core", "full"] if spec.startswith("git") else ["core"]
    results: list[Checked] = []
    for tree in trees:
        results += check_releases(
            overlays, pins, releases, spec=spec, tree=tree, offline=offline, jobs=jobs
        )
    if "full" not in trees:
        reason = "needs a git source: --source git:URL-or-path"
        results += [Checked(r.tag, "full", 0, (), 0, unchecked=reason) for r in releases]
    failed = [r for r in results if r.problems]
    code = (
        5
        if any(r.exit_code == 5 for r in failed)
        else max((r.exit_code for r in failed), default=0)
    )
    if not failed and all(r.unchecked for r in results):
        code = 8
    if as_json:
        print_json({"ok": code == 0, "results": [_describe(r) for r in results]})
        return code
    for result in results:
        if result.unchecked and (result.tree == "core" or workspace.verbosity > 0):
            click.echo(f"{result.release} {result.tree}: not checked: {result.unchecked}")
        elif not result.unchecked:
            outcome = "FAILED" if result.problems else "ok"
            click.echo(f"{result.release} {result.tree}: {outcome}, {result.selections} selections")
    if "full" not in trees:
        click.echo(f"full tree: not checked, it {reason}")
    for result in failed:
        click.echo(f"\n{result.release} {result.tree}:", err=True)
        report_error(OverlayError(*result.problems))
    return code


def _describe(result: object) -> dict[str, object]:
    from mindspeed_overlay.check import Checked

    assert isinstance(result, Checked)
    return {
        "release": result.release,
        "tree": result.tree,
        "selections": result.selections,
        "checked": not result.unchecked,
        "reason": result.unchecked,
        "overlaps": [o.to_json() for o in result.overlaps],
        "problems": [p.to_json() for p in result.problems],
    }
