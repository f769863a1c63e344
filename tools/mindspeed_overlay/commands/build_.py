"""`build`: the patched wheel."""

from pathlib import Path
from typing import Any

import click

from mindspeed_overlay.cli import Workspace, print_json
from mindspeed_overlay.cluster.attest import make_statement, write_statement
from mindspeed_overlay.cluster.matrix import Target, combine_targets, read_matrix
from mindspeed_overlay.cluster.sign import sign_bytes
from mindspeed_overlay.lock import read_lock
from mindspeed_overlay.options import json_option, read_selection, release_option, selection_options
from mindspeed_overlay.plan import Plan, Selection, make_plan
from mindspeed_overlay.targets import Built, Request, build_wheels


@click.command(name="build")
@release_option
@selection_options
@click.option(
    "--source",
    "spec",
    default="pypi",
    show_default=True,
    metavar="SPEC",
    help="pypi, git (NVIDIA's repository), git:URL-or-path, or dir:PATH.",
)
@click.option(
    "--tree",
    type=click.Choice(["core", "full"]),
    default="core",
    show_default=True,
    help="core: what PyPI carries; full: every megatron package and the pretrain scripts (git).",
)
@click.option(
    "--python",
    "pythons",
    metavar="X.Y",
    multiple=True,
    help="Python the wheel is for (3.10,3.11 for several); this one if not given.",
)
@click.option(
    "--platform",
    "platforms",
    metavar="NAME",
    multiple=True,
    help="linux_aarch64, linux_x86_64, manylinux_2_N_ARCH (commas for several); this machine if "
    "not given.",
)
@click.option(
    "--matrix",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="TOML file with the lists `python` and `platform`, or [[target]] tables.",
)
@click.option(
    "--locked",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="build.lock.json: make the same bytes again, or say what differs.",
)
@click.option(
    "--sign",
    "key",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Ed25519 private key (PEM): sign the provenance statement.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("dist"),
    show_default=True,
    help="Folder the wheel goes to.",
)
@click.option("--offline", is_flag=True, help="Use cached downloads only.")
@click.option("--rebuild", is_flag=True, help="Ignore a finished wheel.")
@json_option
@click.pass_obj
def command(
    workspace: Workspace,
    /,
    release: str | None,
    spec: str,
    tree: str,
    pythons: tuple[str, ...],
    platforms: tuple[str, ...],
    matrix: Path | None,
    locked: Path | None,
    key: Path | None,
    out: Path,
    offline: bool,
    rebuild: bool,
    as_json: bool,
    **selection: Any,
) -> int:
    """Build an installable, patched Megatron wheel and print its path.

    \b
    Examples:
      mindspeed-overlay build
      mindspeed-overlay build --release core_v0.19.0 --python 3.12 --platform linux_aarch64
      mindspeed-overlay build --python 3.10,3.11 --platform linux_aarch64,linux_x86_64
      mindspeed-overlay build --locked build.lock.json
      mindspeed-overlay build --feature fusions/fused-swiglu
      mindspeed-overlay build --release core_v0.12.1 --source git --tree full
    """
    if matrix and (pythons or platforms):
        raise click.UsageError("--matrix takes no --python or --platform beside it.")
    targets = read_matrix(matrix) if matrix else combine_targets(pythons, platforms)
    chosen = read_selection(**selection)
    lock = read_lock(locked) if locked else None
    if lock:
        if release or matrix or pythons or platforms or chosen != Selection():
            raise click.UsageError("--locked takes release, overlays and targets from the lock.")
        release, tree = lock.release["tag"], lock.tree
        spec = spec if spec != "pypi" else lock.source
        chosen = Selection(features=tuple(row["id"] for row in lock.overlays))
        targets = tuple(Target(entry.python, entry.platform) for entry in lock.wheels)
    if key:
        sign_bytes(b"", key)  # a wrong key is told before the work, not after
    pins = workspace.pins
    pinned = pins.get(release) if release else pins.default
    plan = make_plan(workspace.overlays, pins, pinned, selection=chosen, tree=tree)
    for patch in plan.skipped:
        workspace.note(
            f"left out {patch.overlay} {patch.name}: the {tree} tree has no {patch.target}"
        )
    for overlay in plan.left_out:
        workspace.note(f"left out {overlay}: it does not serve {pinned.tag}")
    progress = workspace.verbosity >= 0
    request = Request(spec, offline, rebuild, progress=progress, report=workspace.say)
    built, made = build_wheels(plan, targets, out=out, request=request, locked=lock)
    for note in dict.fromkeys(note for wheel in built for note in wheel.notes):
        workspace.note(note)
    write_statement(make_statement(made), out, key=key)
    if as_json:
        _print_json(built, plan)
    else:
        for wheel in built:
            click.echo(wheel.path)
    return 0


def _print_json(built: tuple[Built, ...], plan: Plan) -> None:
    first = built[0]
    print_json(
        {
            "wheel": str(first.path),
            "sha256": first.sha256,
            "digest": first.digest,
            "release": plan.release.tag,
            "overlays": [o.id for o in plan.overlays],
            "skipped_patches": [f"{p.overlay} {p.name}" for p in plan.skipped],
            "reused": all(wheel.reused for wheel in built),
            "notes": list(dict.fromkeys(note for wheel in built for note in wheel.notes)),
            "wheels": [
                {
                    "wheel": str(wheel.path),
                    "sha256": wheel.sha256,
                    "python": wheel.target[0],
                    "platform": wheel.target[1],
                    "reused": wheel.reused,
                }
                for wheel in built
            ],
        }
    )
