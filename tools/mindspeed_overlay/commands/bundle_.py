"""`bundle`: one archive for a site without a network."""

from pathlib import Path

import click

from mindspeed_overlay.cli import Workspace, print_json
from mindspeed_overlay.options import json_option

_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.command(name="bundle")
@click.argument("wheels", type=_FILE, nargs=-1, required=True)
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), required=True, help="The .tar file."
)
@click.option("--lock", type=_FILE, help="The wheels' lock; the one beside them if not given.")
@click.option(
    "--dependency",
    "dependencies",
    type=_FILE,
    multiple=True,
    help="A wheel of another project to install with it; repeatable.",
)
@click.option("--sign", "key", type=_FILE, help="Ed25519 private key (PEM) that signs the bundle.")
@json_option
@click.pass_obj
def command(
    workspace: Workspace,
    wheels: tuple[Path, ...],
    out: Path,
    lock: Path | None,
    dependencies: tuple[Path, ...],
    key: Path | None,
    as_json: bool,
) -> int:
    """Make one archive of wheels, lock, checksums, SBOM and an install script.

    Prints the hash that the script asks for. Carry it another way than the archive.

    \b
    Examples:
      mindspeed-overlay bundle dist/*.whl --out megatron.tar
      mindspeed-overlay bundle dist/*.whl --out megatron.tar --sign team.pem
    """
    from mindspeed_overlay.cluster.bundle import make_bundle, write_bundle
    from mindspeed_overlay.cluster.publish import read_upload
    from mindspeed_overlay.cluster.trusted import check_against_locks
    from mindspeed_overlay.tree import sha256

    locks = check_against_locks(wheels, lock)
    if len({locked.digest for locked in locks.values()}) != 1:
        raise click.UsageError("the wheels of a bundle come from one lock.")
    data, checksum = make_bundle(
        next(iter(locks.values())),
        [read_upload(path) for path in wheels],
        [read_upload(path) for path in dependencies],
        key=key,
    )
    write_bundle(out, data)
    if as_json:
        print_json({"bundle": str(out), "sha256": sha256(data), "sums_sha256": checksum})
    else:
        workspace.say(f"{out}: SHA-256 {sha256(data)}")
        click.echo(checksum)
    return 0
