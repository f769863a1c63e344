"""`new`: start an overlay, and walk its six steps."""

from pathlib import Path

import click

from mindspeed_overlay.cli import Workspace
from mindspeed_overlay.scaffold import describe_steps, find_symbol, write_scaffold


@click.command(name="new")
@click.argument("overlay_id", metavar="ID")
@click.option("--summary", default="", help="One line: what it computes, where.")
@click.option(
    "--target",
    metavar="PATH:SYMBOL",
    default="",
    help="Upstream code to analyse, like megatron/core/transformer/mlp.py:MLP.forward.",
)
@click.option("--offline", is_flag=True, help="Use cached downloads only.")
@click.pass_obj
def command(workspace: Workspace, overlay_id: str, summary: str, target: str, offline: bool) -> int:
    """Start a new overlay: its folder, test and page, and the six steps to go.

    Analyse, write the patch, add the argument, enable, test, contribute. With --target the first
    step is done at once: where the symbol stands on each pinned release, and where it differs.
    Works in the overlay set of --overlays, which must lie in a folder you can write.

    \b
    Example:
      mindspeed-overlay --overlays overlays new fusions/fused-gelu \\
        --target megatron/core/transformer/mlp.py:MLP.__init__
    """
    written = write_scaffold(workspace.overlays_folder, overlay_id, summary, workspace.pins)
    for path in written:
        click.echo(f"wrote {_shown(path)}")
    click.echo("")
    if target:
        for line in find_symbol(workspace.pins, target, offline=offline):
            click.echo(line)
        click.echo("")
    click.echo(describe_steps(overlay_id, target))
    return 0


def _shown(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
