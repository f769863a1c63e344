"""`reconcile`: a site-packages to a build, and back."""

import sys
from pathlib import Path
from typing import Any

import click

from mindspeed_overlay.cli import Workspace, print_json
from mindspeed_overlay.options import json_option

_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
_FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)


@click.command(name="reconcile")
@click.argument("wheel", type=_FILE, required=False)
@click.option("--back", is_flag=True, help="Undo the last reconcile, exactly.")
@click.option("--python", metavar="EXE", default="", help="The interpreter whose packages change.")
@click.option("--site", type=_FOLDER, help="The site-packages folder itself, of an image say.")
@click.option("--lock", type=_FILE, help="The wheel's lock; the one beside it if not given.")
@click.option("--explain", "repository", type=_FOLDER, help="Git repository of local changes.")
@json_option
@click.pass_obj
def command(
    workspace: Workspace,
    wheel: Path | None,
    back: bool,
    python: str,
    site: Path | None,
    lock: Path | None,
    repository: Path | None,
    as_json: bool,
) -> int:
    """Take an environment from any known state to the build of WHEEL, or back.

    Known: no Megatron, an unmodified pinned release, a build of this tool, or a copy of these whose
    changes are in the history of a git repository. What is replaced is kept, byte for byte; a file
    that nothing explains is named, and nothing is changed.

    \b
    Examples:
      mindspeed-overlay reconcile dist/megatron_core-*.whl --python /opt/train/bin/python
      mindspeed-overlay reconcile dist/megatron_core-*.whl --site rootfs/site-packages
      mindspeed-overlay reconcile --back --python /opt/train/bin/python
    """
    from mindspeed_overlay.cluster.reconcile import reconcile, take_back
    from mindspeed_overlay.cluster.sitestate import describe
    from mindspeed_overlay.cluster.trusted import check_against_locks

    if bool(wheel) == back:
        raise click.UsageError("give a WHEEL, or --back.")
    folder = site or _find_site(python or sys.executable)
    if wheel is None:
        state = take_back(folder, workspace.pins)
        result: dict[str, Any] = {"site": str(folder), "now": describe(state)}
        sentence = f"{folder}: back to {state.kind} {state.version}".rstrip()
    else:
        check_against_locks([wheel], lock)
        done = reconcile(folder, wheel.read_bytes(), workspace.pins, repository=repository)
        result = {"site": str(folder), "before": describe(done.before), "version": done.version}
        result["changed"] = done.changed
        was = f"was {done.before.kind} {done.before.version}".rstrip()
        sentence = f"{folder}: {done.version} ({was if done.changed else 'as it was'})"
    if as_json:
        print_json(result)
    else:
        click.echo(sentence)
    return 0


def _find_site(python: str) -> Path:
    import subprocess

    from mindspeed_overlay.errors import MissingError, Problem

    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    try:
        done = subprocess.run(
            [python, "-c", code], capture_output=True, text=True, check=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError) as error:
        message = f"cannot start {python}: {error}"
        raise MissingError(
            Problem(code="E803", message=message, hint="give --python PATH or --site FOLDER")
        ) from error
    return Path(done.stdout.strip())
