"""`verify`: a wheel, an installation or many hosts against records and locks."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mindspeed_overlay.cli import Workspace, print_json, report_error
from mindspeed_overlay.errors import Problem, VerifyError
from mindspeed_overlay.lock import Lock, read_lock
from mindspeed_overlay.options import json_option
from mindspeed_overlay.verify import Verdict

if TYPE_CHECKING:
    from mindspeed_overlay.cluster.hosts import HostReport

_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.command(name="verify")
@click.argument("wheel", type=_FILE, required=False)
@click.option("--installed", is_flag=True, help="Check the installed megatron-core.")
@click.option(
    "--hosts", type=_FILE, help="Check the installed one on every host of a file, by ssh."
)
@click.option(
    "--python", metavar="EXE", default="", help="With --installed or --hosts: this interpreter's."
)
@click.option(
    "--sha256", "expected", metavar="HEX", default="", help="The wheel's SHA-256, from elsewhere."
)
@click.option("--lock", type=_FILE, help="build.lock.json, from elsewhere.")
@click.option("--key", type=_FILE, help="Public key (PEM) of who signed the provenance statement.")
@click.option(
    "--provenance", type=_FILE, help="The signed statement; the one beside the wheel if not given."
)
@click.option("--parallel", default=16, show_default=True, help="With --hosts: this many at once.")
@click.option("--timeout", default=60.0, show_default=True, help="With --hosts: seconds per host.")
@click.option(
    "--ssh", default="ssh", show_default=True, help="With --hosts: the client and its options."
)
@json_option
@click.pass_obj
def command(
    workspace: Workspace,
    wheel: Path | None,
    installed: bool,
    hosts: Path | None,
    python: str,
    expected: str,
    lock: Path | None,
    key: Path | None,
    provenance: Path | None,
    parallel: int,
    timeout: float,
    ssh: str,
    as_json: bool,
) -> int:
    """Prove that a wheel or an installation is exactly what its records say.

    Extra, missing, changed and unrecorded files fail, named with their overlay; so does a Megatron
    that shadows the installed one. Records can be forged together with the files: to know that it
    is the build you made, give --lock, --sha256 or --key from a place that the wheel did not come
    from.

    \b
    Examples:
      mindspeed-overlay verify dist/megatron_core-0.16.1+mindspeed*.whl --lock dist/build.lock.json
      mindspeed-overlay verify dist/megatron_core-0.16.1+mindspeed*.whl --key team.pub.pem
      mindspeed-overlay verify --installed --python /opt/train/bin/python
      mindspeed-overlay verify --hosts hosts.txt --lock build.lock.json
    """
    if [bool(wheel), installed, bool(hosts)].count(True) != 1:
        raise click.UsageError("give one of WHEEL, --installed and --hosts.")
    if not wheel and (expected or key):
        raise click.UsageError("--sha256 and --key are a wheel's; else give --lock.")
    locked = read_lock(lock) if lock else None
    if hosts:
        from mindspeed_overlay.cluster.hosts import HostsRun, read_hosts

        run = HostsRun(ssh, parallel, timeout, locked)
        reports = run.verify(read_hosts(hosts, python=python))
        return _report_hosts(workspace, reports, as_json=as_json)
    if wheel:
        verdict = _verify_wheel(wheel, expected, locked, key, provenance)
    else:
        from mindspeed_overlay.installed import verify_installed

        builds = frozenset(entry.build_json_sha256 for entry in locked.wheels) if locked else None
        verdict = verify_installed(python=python, build_sha256=builds or frozenset())
    return _report(workspace, verdict, authentic=bool(expected or lock or key), as_json=as_json)


def _verify_wheel(
    wheel: Path, expected: str, locked: Lock | None, key: Path | None, provenance: Path | None
) -> Verdict:
    from dataclasses import replace

    from mindspeed_overlay.cluster.attest import ENVELOPE_NAME, check_envelope
    from mindspeed_overlay.tree import sha256
    from mindspeed_overlay.verify import verify_wheel

    problems: list[Problem] = []
    if locked and not expected:
        if entry := locked.get(wheel.name):
            expected = entry.wheel_sha256
        else:
            names = ", ".join(entry.wheel for entry in locked.wheels)
            message = f"{wheel.name} is not in the lock, which has {names}"
            problems.append(Problem(code="E906", path=wheel.name, message=message))
    if key:
        envelope = provenance or wheel.with_name(ENVELOPE_NAME)
        checksum = sha256(wheel.read_bytes())
        problems += check_envelope(envelope, key=key, name=wheel.name, sha256=checksum)
    verdict = verify_wheel(wheel, expected_sha256=expected)
    return replace(verdict, problems=(*problems, *verdict.problems))


def _report(workspace: Workspace, verdict: Verdict, *, authentic: bool, as_json: bool) -> int:
    if as_json:
        print_json({**verdict.to_json(), "authentic": authentic and not verdict.problems})
    if verdict.problems:
        error = VerifyError(*verdict.problems)
        if not as_json:
            _print_locations(verdict.locations)
            report_error(error)
        return error.exit_code
    if not as_json:
        click.echo(f"ok: {verdict.subject}\n  {verdict.version}, {verdict.files} files as recorded")
        _print_locations(verdict.locations)
        if not authentic:
            workspace.note(
                "consistent with its own records; that it is authentic needs --lock FILE from "
                "elsewhere (of a wheel also --sha256 HEX or --key FILE)"
            )
    return 0


def _print_locations(locations: Mapping[str, str]) -> None:
    for name, where in locations.items():
        click.echo(f"  {name} is imported from {where}")


def _report_hosts(workspace: Workspace, reports: "list[HostReport]", *, as_json: bool) -> int:
    problems = [problem for report in reports for problem in report.problems]
    if as_json:
        print_json({"ok": not problems, "hosts": [report.to_json() for report in reports]})
    else:
        _print_table(reports)
        for report in reports:
            for warning in report.warnings:
                workspace.note(f"{report.host.name}: {warning}")
    if problems:
        if not as_json:
            report_error(VerifyError(*problems))
        return VerifyError.exit_code
    return 0


def _print_table(reports: "list[HostReport]") -> None:
    rows: list[tuple[str, ...]] = [
        ("host", "state", "megatron-core", "torch", "torch-npu", "python")
    ]
    for report in reports:
        names = ("version", "torch", "torch-npu", "python")
        rows.append((report.host.name, report.state, *(report.facts.get(n) or "-" for n in names)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        click.echo("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip())
    good = sum(report.state == "ok" for report in reports)
    click.echo(f"{good} of {len(reports)} hosts are as recorded and alike")
