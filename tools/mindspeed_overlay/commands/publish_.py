"""`publish`: a static package index."""

from pathlib import Path

import click

from mindspeed_overlay.cli import Workspace, print_json
from mindspeed_overlay.options import json_option

_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.command(name="publish")
@click.argument("wheels", type=_FILE, nargs=-1)
@click.option(
    "--index",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Folder that is, or becomes, the index.",
)
@click.option("--lock", type=_FILE, help="The wheels' lock; the one beside them if not given.")
@click.option(
    "--dependency",
    "dependencies",
    type=_FILE,
    multiple=True,
    help="A wheel of another project that the cluster needs; repeatable.",
)
@click.option("--yank", "yanked", metavar="VERSION", help="Mark a version as not to be chosen.")
@click.option("--unyank", metavar="VERSION", help="Take a yank back.")
@click.option("--reason", default="yanked", show_default=True, help="With --yank: why.")
@json_option
@click.pass_obj
def command(
    workspace: Workspace,
    wheels: tuple[Path, ...],
    index: Path,
    lock: Path | None,
    dependencies: tuple[Path, ...],
    yanked: str | None,
    unyank: str | None,
    reason: str,
    as_json: bool,
) -> int:
    """Put built wheels into a package index that pip and uv install from.

    The index is a folder: a web server, a shared file system or file:// serves it. Each wheel must
    be what its lock says. Use it as the only index, and with the constraints file that is printed.

    \b
    Examples:
      mindspeed-overlay publish dist/*.whl --index /srv/wheels
      pip install --index-url file:///srv/wheels/simple -c CONSTRAINTS --no-deps megatron-core
      mindspeed-overlay publish --index /srv/wheels --yank 0.16.1+mindspeed.1.g0123456789ab
    """
    from mindspeed_overlay.cluster.publish import publish, read_upload, yank

    if [bool(wheels or dependencies), bool(yanked), bool(unyank)].count(True) != 1:
        raise click.UsageError("give WHEELS, --yank or --unyank.")
    if version := yanked or unyank:
        entries = yank(index, version, reason=reason if yanked else "")
    else:
        extras = _check_wheels(wheels, lock)
        uploads = [read_upload(path) for path in (*wheels, *dependencies)]
        entries = publish(index, uploads, extras=extras)
    constraints = [
        str(index / f"constraints/megatron-core-{version}.txt")
        for version in sorted({e.version for e in entries if e.project == "megatron-core"})
    ]
    if as_json:
        files = [{"file": e.filename, "sha256": e.sha256, "yanked": e.yanked} for e in entries]
        print_json({"index": str(index), "files": files, "constraints": constraints})
        return 0
    for entry in entries:
        workspace.say(f"{entry.filename} {entry.sha256}")
    for path in constraints:
        click.echo(path)
    return 0


def _check_wheels(wheels: tuple[Path, ...], lock: Path | None) -> dict[str, bytes]:
    """The locks and statements to publish with the wheels, which all agree with them."""
    from mindspeed_overlay.cluster.trusted import check_against_locks

    locks = check_against_locks(wheels, lock)
    extras = {}
    for path, locked in locks.items():
        extras[f"locks/{locked.digest}.lock.json"] = locked.to_bytes()
        for name in ("build.provenance.json", "build.provenance.dsse.json"):
            if (statement := path.with_name(name)).is_file():
                extras[f"locks/{locked.digest}.{name.removeprefix('build.')}"] = (
                    statement.read_bytes()
                )
    return extras
