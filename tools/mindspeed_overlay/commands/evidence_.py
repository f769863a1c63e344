"""`evidence`: the self-verification report that goes with a contribution."""

import tempfile
from pathlib import Path

import click

from mindspeed_overlay.cli import Workspace, print_json
from mindspeed_overlay.options import json_option, overlay_argument


@click.command(name="evidence")
@overlay_argument
@click.option(
    "--junit",
    metavar="FILE",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The JUnit report of a test run; the tests are run if not given.",
)
@click.option("--no-tests", is_flag=True, help="Report without tests.")
@click.option(
    "--output",
    "-o",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the report there.",
)
@click.option(
    "--source", "spec", default="pypi", show_default=True, metavar="SPEC", help="As in `build`."
)
@click.option("--offline", is_flag=True, help="Use cached downloads only.")
@json_option
@click.pass_obj
def command(
    workspace: Workspace,
    overlay_id: str,
    junit: Path | None,
    no_tests: bool,
    output: Path | None,
    spec: str,
    offline: bool,
    as_json: bool,
) -> int:
    """Print the self-verification report of an overlay: state, tests and pages, found anew.

    Exit code 9: something is not shown (a release that is not verified, a failing test, no page).

    \b
    Examples:
      mindspeed-overlay evidence fusions/fused-swiglu
      mindspeed-overlay evidence attention/flash-attention --junit results.xml -o report.md
    """
    from mindspeed_overlay.drift.survey import Survey
    from mindspeed_overlay.evidence import find_tests, gather, run_tests
    from mindspeed_overlay.evidence_page import write_page
    from mindspeed_overlay.source.cache import find_cache_dir
    from mindspeed_overlay.staging import write_atomically

    overlay = workspace.overlays.get(overlay_id)
    root = workspace.overlays_folder.parent
    survey = Survey(workspace.overlays, workspace.pins, spec, offline)
    with tempfile.TemporaryDirectory() as folder:
        if junit is None and not no_tests:
            tests = find_tests(root, overlay)
            junit = Path(folder) / "junit.xml"
            workspace.say(f"running {tests}")
            run_tests([tests], root=root, report=junit)
        evidence = gather(
            survey, overlay, root=root, cache=find_cache_dir() / "status", report=junit
        )
    page = write_page(evidence)
    if output:
        write_atomically(output.absolute(), page.encode())
    if as_json:
        print_json(evidence.to_json())
    elif not output:
        click.echo(page, nl=False)
    return 0 if evidence.is_complete else 9
