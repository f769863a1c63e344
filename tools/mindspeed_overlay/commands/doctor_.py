"""`doctor`: what this machine has, and what to do about what it lacks; or what all ranks have."""

import subprocess
import sys
from pathlib import Path

import click

from mindspeed_overlay.cli import print_json
from mindspeed_overlay.doctor import examine
from mindspeed_overlay.options import json_option


@click.command(name="doctor")
@click.option(
    "--cluster",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Under torchrun or srun: write what a bug report needs of all ranks.",
)
@json_option
@click.pass_obj
def command(workspace: object, cluster: Path | None, as_json: bool) -> int:
    """Look at git, Python, pip and its index, the cache, torch, torch_npu and CANN.

    \b
    Examples:
      mindspeed-overlay doctor --json
      srun mindspeed-overlay doctor --cluster report.json
    """
    if cluster:
        # The installed build does it: where the tool is not, `python -m mindspeed.verify` is.
        command = [sys.executable, "-m", "mindspeed.verify", "--collect", str(cluster)]
        return subprocess.run(command, check=False).returncode
    findings = examine()
    if as_json:
        print_json([finding.to_json() for finding in findings])
    else:
        for finding in findings:
            click.echo(f"{finding.state:>7}  {finding.name}: {finding.found}")
            if finding.advice:
                click.echo(f"         -> {finding.advice}")
    return 8 if any(finding.state == "missing" for finding in findings) else 0
