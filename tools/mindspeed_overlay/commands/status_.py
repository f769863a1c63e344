"""`status`: the matrix of overlays by releases."""

from pathlib import Path

import click

from mindspeed_overlay.cli import Workspace, print_json
from mindspeed_overlay.options import json_option, release_option


@click.command(name="status")
@click.argument("ids", metavar="[ID]...", nargs=-1)
@release_option
@click.option(
    "--html",
    "page",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the matrix as one HTML page.",
)
@click.option(
    "--results",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Test results; test-results.json beside the overlay set if not given.",
)
@click.option(
    "--record-tests",
    "junit",
    metavar="FILE",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Add the tests of this JUnit report to the results first.",
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
    release: str | None,
    page: Path | None,
    results: Path | None,
    junit: Path | None,
    spec: str,
    offline: bool,
    as_json: bool,
) -> int:
    """Show what state each overlay is in on each release, and why.

    `verified` stands only where the overlay's tests passed on that release with exactly these
    contents; everything else is what applying, the gate and the record of reviews say.

    \b
    Examples:
      mindspeed-overlay status
      mindspeed-overlay status fusions/fused-swiglu --json
      mindspeed-overlay status --html status.html
      pytest tests/features --junitxml r.xml; mindspeed-overlay status --record-tests r.xml
    """  # fmt: skip
    from mindspeed_overlay.drift.survey import Survey
    from mindspeed_overlay.source.cache import find_cache_dir
    from mindspeed_overlay.status.matrix import StatusFinder
    from mindspeed_overlay.status.page import write_page
    from mindspeed_overlay.status.record import record_tests
    from mindspeed_overlay.status.results import RESULTS, read_results

    pins = workspace.pins
    where = results or workspace.overlays_folder.parent / RESULTS
    survey = Survey(workspace.overlays, pins, spec, offline)
    if junit:
        record_tests(survey, junit, where)
    finder = StatusFinder(survey, find_cache_dir() / "status", read_results(where))
    chosen = [workspace.overlays.get(i) for i in ids] or list(workspace.overlays.overlays)
    matrix = finder.find_matrix(chosen, [pins.get(release)] if release else pins.releases)
    if page:
        from mindspeed_overlay.staging import write_atomically

        write_atomically(page.absolute(), write_page(matrix, title="Overlays by Megatron release"))
    if as_json:
        print_json(matrix.to_json())
        return 0
    _print(workspace, matrix)
    return 0


def _print(workspace: Workspace, matrix: object) -> None:
    from rich.console import Console
    from rich.table import Table

    from mindspeed_overlay.status.cell import MEANING, SHORT, Matrix

    assert isinstance(matrix, Matrix)
    colours = {"verified": "bold green", "applies": "green", "ported": "green", "drift": "yellow",
               "conflict": "bold red", "absorbed": "blue", "native": "blue"}  # fmt: skip
    table = Table("overlay", *(tag.removeprefix("core_v") for tag in matrix.releases), box=None)
    for overlay, _ in matrix.overlays:
        states = [matrix.cells[overlay, tag].state for tag in matrix.releases]
        table.add_row(
            overlay,
            *(f"[{colours[s]}]{SHORT[s]}[/]" if s in colours else SHORT[s] for s in states),
        )
    console = Console(width=None if Console().is_terminal else 160, highlight=False)
    console.print(table)
    shown = {cell.state for cell in matrix.cells.values()}
    for state in MEANING:
        if state in shown:
            console.print(f"  {SHORT[state]}: {MEANING[state]}")
    for cell in matrix.cells.values():
        bad = cell.state in ("conflict", "not checked", "drift")
        if bad or (workspace.verbosity > 0 and cell.state != "not claimed"):
            click.echo(f"{cell.release} {cell.overlay}: {cell.state}: {cell.reason}")
            if workspace.verbosity > 0:
                click.echo("".join(f"    {line}\n" for line in cell.details), nl=False)
