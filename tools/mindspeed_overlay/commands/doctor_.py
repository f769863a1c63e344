"""`doctor`: what this machine has, and what to do about what it lacks."""

import click

from mindspeed_overlay.cli import print_json
from mindspeed_overlay.doctor import examine
from mindspeed_overlay.options import json_option


@click.command(name="doctor")
@json_option
@click.pass_obj
def command(workspace: object, as_json: bool) -> int:
    """Look at git, Python, pip and its index, the cache, torch, torch_npu and CANN.

    \b
    Example:
      mindspeed-overlay doctor --json
    """
    findings = examine()
    if as_json:
        print_json([finding.to_json() for finding in findings])
    else:
        for finding in findings:
            click.echo(f"{finding.state:>7}  {finding.name}: {finding.found}")
            if finding.advice:
                click.echo(f"         -> {finding.advice}")
    return 8 if any(finding.state == "missing" for finding in findings) else 0
