"""`port`: carry overlays to another Megatron release."""

from pathlib import Path

import click

from mindspeed_overlay.cli import Workspace, print_json
from mindspeed_overlay.options import json_option


@click.command(name="port")
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--to", "last", metavar="TAG", default="", help="The release to carry to.")
@click.option("--from", "first", metavar="TAG", default="", help="The release to carry from.")
@click.option(
    "--source",
    "spec",
    default="pypi",
    show_default=True,
    metavar="SPEC",
    help="As in `build`; git:PATH also knows history, and any commit for --from and --to.",
)
@click.option("--offline", is_flag=True, help="Use cached downloads only.")
@click.option("--again", is_flag=True, help="Replace forms that the release has already.")
@click.option("--dry-run", is_flag=True, help="Report, and write nothing.")
@click.option(
    "--work",
    type=click.Path(path_type=Path),
    default=Path(".mindspeed-port"),
    show_default=True,
    help="Folder for an unfinished port.",
)
@click.option("--continue", "go_on", is_flag=True, help="Go on after conflicts were solved.")
@click.option(
    "--abort", is_flag=True, help="Give an unfinished port up; overlays stay as they are."
)
@click.option("--skip", metavar="ID", multiple=True, help="Leave this overlay out; repeatable.")
@click.option("--html", type=click.Path(path_type=Path), help="Write the report as a page.")
@click.option("--sarif", type=click.Path(path_type=Path), help="Write what is open as SARIF.")
@json_option
@click.pass_obj
def command(
    workspace: Workspace,
    /,
    ids: tuple[str, ...],
    last: str,
    first: str,
    spec: str,
    offline: bool,
    again: bool,
    dry_run: bool,
    work: Path,
    go_on: bool,
    abort: bool,
    skip: tuple[str, ...],
    html: Path | None,
    sarif: Path | None,
    as_json: bool,
) -> int:
    """Carry overlays to another Megatron release, release by release.

    Every patch is applied exactly where that is possible, else carried by symbol, by lines, and by
    statements; the result goes through the gate. Nothing is written to the overlay set before all
    is well: a conflict is laid out as a git merge in the work folder.

    \b
    Examples:
      mindspeed-overlay port --to core_v0.19.0
      mindspeed-overlay port fusions/fused-swiglu --to core_v0.19.0 --from core_v0.18.2 --dry-run
      mindspeed-overlay port --to core_v0.19.0 --source git:../Megatron-LM --html port.html
      mindspeed-overlay port --continue
    """
    from mindspeed_overlay.port.session import Request, abort_port, continue_port, start_port

    if abort:
        abort_port(work)
        return 0
    if go_on or (skip and not last):
        outcome = continue_port(workspace, work, skip=skip)
    else:
        request = Request(
            ids=ids,
            first=first,
            last=last,
            spec=spec,
            offline=offline,
            again=again,
            skip=skip,
        )
        outcome = start_port(workspace, request, work, dry_run=dry_run)
    if html:
        from mindspeed_overlay.port.report_html import render_html

        html.write_text(render_html(outcome.ported), "utf-8")
    if sarif:
        from mindspeed_overlay.port.report_sarif import render_sarif

        sarif.write_text(render_sarif(outcome.ported), "utf-8")
    from mindspeed_overlay.port.report import render_text, to_json

    if as_json:
        print_json(to_json(outcome.ported) | {"written": [str(p) for p in outcome.written]})
        return outcome.exit_code
    for line in render_text(outcome.ported, details=workspace.verbosity > 0):
        click.echo(line)
    for path in outcome.written:
        click.echo(f"wrote {path}")
    for line in outcome.advice:
        click.echo(line, err=True)
    return outcome.exit_code
