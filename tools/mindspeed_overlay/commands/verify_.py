"""`verify`: a wheel or an installation against its own records."""

from pathlib import Path

import click

from mindspeed_overlay.cli import Workspace, print_json, report_error
from mindspeed_overlay.errors import VerifyError
from mindspeed_overlay.lock import read_lock
from mindspeed_overlay.options import json_option


@click.command(name="verify")
@click.argument(
    "wheel", type=click.Path(path_type=Path, exists=True, dir_okay=False), required=False
)
@click.option("--installed", is_flag=True, help="Check the installed megatron-core.")
@click.option("--python", metavar="EXE", default="", help="With --installed: of this interpreter.")
@click.option(
    "--sha256", "expected", metavar="HEX", default="", help="The wheel's SHA-256, from elsewhere."
)
@click.option(
    "--lock",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="build.lock.json, from elsewhere.",
)
@json_option
@click.pass_obj
def command(
    workspace: Workspace,
    wheel: Path | None,
    installed: bool,
    python: str,
    expected: str,
    lock: Path | None,
    as_json: bool,
) -> int:
    """Prove that a wheel or an installation is exactly what its records say.

    Extra, missing, changed and unrecorded files fail, named with their overlay; so does a Megatron
    that shadows the installed one. Records can be forged together with the files: to know that it
    is the build you made, give --lock or --sha256 from a place that the wheel did not come from.

    \b
    Examples:
      mindspeed-overlay verify dist/megatron_core-0.16.1+mindspeed*.whl --lock dist/build.lock.json
      mindspeed-overlay verify --installed --python /opt/train/bin/python
    """
    from mindspeed_overlay.installed import verify_installed
    from mindspeed_overlay.verify import verify_wheel

    if bool(wheel) == installed:
        raise click.UsageError("give a WHEEL, or --installed.")
    locked = read_lock(lock) if lock else None
    if wheel:
        expected = expected or (locked.wheel_sha256 if locked else "")
        verdict = verify_wheel(wheel, expected_sha256=expected)
    else:
        if expected:
            raise click.UsageError("--sha256 is a wheel's; for --installed give --lock.")
        build_sha256 = locked.build_json_sha256 if locked else ""
        verdict = verify_installed(python=python, build_sha256=build_sha256)
    if as_json:
        print_json(
            {**verdict.to_json(), "authentic": bool(expected or lock) and not verdict.problems}
        )
    if verdict.problems:
        error = VerifyError(*verdict.problems)
        if not as_json:
            _print_locations(verdict.locations)
            report_error(error)
        return error.exit_code
    if not as_json:
        click.echo(f"ok: {verdict.subject}\n  {verdict.version}, {verdict.files} files as recorded")
        _print_locations(verdict.locations)
        if not (expected or lock):
            workspace.note(
                "consistent with its own records; that it is authentic needs --lock FILE"
                + (" or --sha256 HEX" if wheel else "")
                + " from elsewhere"
            )
    return 0


def _print_locations(locations: object) -> None:
    assert hasattr(locations, "items")
    for name, where in locations.items():
        click.echo(f"  {name} is imported from {where}")
