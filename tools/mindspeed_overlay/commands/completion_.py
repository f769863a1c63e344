"""`completion`: the script a shell evaluates."""

import click
from click.shell_completion import get_completion_class

from mindspeed_overlay.cli import cli


@click.command(name="completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> int:
    """Print the completion script of a shell.

    \b
    Examples:
      eval "$(mindspeed-overlay completion bash)"
      mindspeed-overlay completion zsh > "${fpath[1]}/_mindspeed-overlay"
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(cli, {}, "mindspeed-overlay", "_MINDSPEED_OVERLAY_COMPLETE").source())
    return 0
