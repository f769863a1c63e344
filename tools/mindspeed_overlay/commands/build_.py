"""`build`: the patched wheel."""

from pathlib import Path
from typing import Any

import click

from mindspeed_overlay.build import build_wheel
from mindspeed_overlay.cli import Workspace, print_json
from mindspeed_overlay.options import json_option, read_selection, release_option, selection_options
from mindspeed_overlay.plan import make_plan


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
@click.option("--python", metavar="X.Y", help="Python the wheel is for; this one if not given.")
@click.option(
    "--platform",
    metavar="NAME",
    help="linux_aarch64, linux_x86_64, manylinux_2_N_ARCH; this machine if not given.",
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
    python: str | None,
    platform: str | None,
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
      mindspeed-overlay build --feature fusions/fused-swiglu
      mindspeed-overlay build --release core_v0.12.1 --source git --tree full
    """
    pins = workspace.pins
    pinned = pins.get(release) if release else pins.default
    plan = make_plan(
        workspace.overlays, pins, pinned, selection=read_selection(**selection), tree=tree
    )
    for patch in plan.skipped:
        workspace.note(
            f"left out {patch.overlay} {patch.name}: the {tree} tree has no {patch.target}"
        )
    for overlay in plan.left_out:
        workspace.note(f"left out {overlay}: it does not serve {pinned.tag}")
    built = build_wheel(
        plan,
        out=out,
        spec=spec,
        python=python,
        platform=platform,
        offline=offline,
        rebuild=rebuild,
        progress=workspace.verbosity >= 0,
        report=workspace.say,
    )
    for note in built.notes:
        workspace.note(note)
    if as_json:
        print_json(
            {
                "wheel": str(built.path),
                "sha256": built.sha256,
                "digest": built.digest,
                "release": pinned.tag,
                "overlays": [o.id for o in plan.overlays],
                "skipped_patches": [f"{p.overlay} {p.name}" for p in plan.skipped],
                "reused": built.reused,
                "notes": list(built.notes),
            }
        )
    else:
        click.echo(built.path)
    return 0
