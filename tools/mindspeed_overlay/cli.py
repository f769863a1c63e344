"""The command line: global options, commands loaded on use, errors turned into exit codes."""

import importlib
import json
import os
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import click

from mindspeed_overlay import __version__
from mindspeed_overlay.data import default_overlays, default_pins
from mindspeed_overlay.errors import OverlayError
from mindspeed_overlay.overlay import OverlaySet, load_overlays
from mindspeed_overlay.pins import Pins, load_pins

COMMANDS = {
    "build": "Build an installable, patched Megatron wheel.",
    "apply": "Write the patched tree as a git repository, one commit per overlay.",
    "list": "List the overlays.",
    "show": "Show one overlay: options, releases, files and patches.",
    "status": "Show the state of every overlay on every release.",
    "drift": "Show upstream code that overlays edit or use, where it changed.",
    "blame": "Tell which overlay, or which release, the lines of a file come from.",
    "check": "Check every overlay on every release it claims.",
    "new": "Start a new overlay, step by step.",
    "import": "Turn somebody's patches into an overlay.",
    "port": "Carry overlays to another Megatron release.",
    "refresh": "Write patches anew: canonical, or from an edited work tree.",
    "verify": "Prove that a wheel or an installation is what its records say.",
    "publish": "Put wheels into a static package index.",
    "bundle": "Make one archive to install from where there is no network.",
    "reconcile": "Take site-packages from any known state to a build, and back.",
    "pin": "List, verify or add pinned Megatron releases.",
    "evidence": "Print the self-verification report of an overlay.",
    "doctor": "Look at this machine: git, Python, pip, torch, torch_npu, CANN.",
    "completion": "Print the shell completion script.",
}


@dataclass
class Workspace:
    """The overlay set and pins a command works on, read when first asked for."""

    overlays_folder: Path
    pins_file: Path
    verbosity: int

    @cached_property
    def pins(self) -> Pins:
        """The pinned releases."""
        return load_pins(self.pins_file)

    @cached_property
    def overlays(self) -> OverlaySet:
        """The overlays, checked against the pins."""
        tags = tuple(release.tag for release in self.pins.releases)
        return load_overlays(self.overlays_folder, tags=tags)

    def say(self, sentence: str) -> None:
        """Tell a person what is being done: with -v always, else on a terminal, never with -q."""
        if self.verbosity > 0 or (self.verbosity == 0 and sys.stderr.isatty()):
            click.echo(sentence, err=True)

    def note(self, sentence: str) -> None:
        """Tell a person something that must be read; silent only with -q."""
        if self.verbosity >= 0:
            click.echo(f"note: {sentence}", err=True)


class _LazyGroup(click.Group):
    """Imports a command's module when it is used, so that starting stays fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f"mindspeed_overlay.commands.{name}_")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--overlays", type=click.Path(path_type=Path), help="Another overlay set.")
@click.option("--pins", type=click.Path(path_type=Path), help="Another pin file.")
@click.option("-v", "--verbose", is_flag=True, help="Say every step.")
@click.option("-q", "--quiet", is_flag=True, help="Print results and errors only.")
@click.version_option(__version__, prog_name="mindspeed-overlay")
@click.pass_context
def cli(
    ctx: click.Context, overlays: Path | None, pins: Path | None, verbose: bool, quiet: bool
) -> None:
    """Build Megatron wheels with Ascend NPU features, from a pinned release and source overlays.

    \b
    Examples:
      mindspeed-overlay build                                  the default release, every overlay
      mindspeed-overlay build --release core_v0.19.0 --python 3.12 --platform linux_aarch64
      mindspeed-overlay list --json
      mindspeed-overlay verify dist/megatron_core-*.whl
    """
    ctx.obj = Workspace(
        (overlays or default_overlays()).absolute(),
        (pins or default_pins()).absolute(),
        int(verbose) - int(quiet),
    )


def main() -> None:
    """Run the tool: errors become lines on stderr (and JSON with --json) and an exit code."""
    os.umask(0o022)
    try:
        code = cli.main(standalone_mode=False, prog_name="mindspeed-overlay")
    except OverlayError as error:
        report_error(error)
        code = error.exit_code
    except click.exceptions.Abort:
        code = 130
    except KeyboardInterrupt:
        code = 130
    except click.ClickException as error:
        error.show()
        code = 2
    except BrokenPipeError:
        code = 0
        sys.stdout = None
    sys.exit(code if isinstance(code, int) else 0)


def report_error(error: OverlayError) -> None:
    """Print every problem of an error where the reader, person or machine, expects it."""
    if "--json" in sys.argv:
        print_json({"ok": False, "problems": [p.to_json() for p in error.problems]})
    for problem in error.problems:
        text = str(problem)
        if sys.stderr.isatty() and "NO_COLOR" not in os.environ:
            head, _, rest = text.partition("]")
            text = click.style(f"{head}]", fg="red", bold=True) + rest
        click.echo(text, err=True)


def print_json(value: Any) -> None:
    """Print `value` as JSON on stdout."""
    click.echo(json.dumps(value, indent=2))
