"""`blame`: where the lines of a patched file come from."""

import re
import sys
from pathlib import Path

import click

from mindspeed_overlay.blame import Blamed
from mindspeed_overlay.cli import Workspace, print_json
from mindspeed_overlay.options import json_option

_PLACE = re.compile(r"(?P<path>.+?)(?::(?P<first>\d+)(?:-(?P<last>\d+))?)?")


@click.command(name="blame")
@click.argument("place", metavar="PATH[:LINE[-LAST]]")
@click.option(
    "--wheel",
    metavar="FILE",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="PATH is a file of this wheel.",
)
@click.option("--installed", is_flag=True, help="PATH is a file of the installed megatron-core.")
@click.option("--python", metavar="EXE", default="", help="With --installed: of this interpreter.")
@click.option(
    "--source",
    "spec",
    metavar="SPEC",
    default="",
    help="Where upstream's lines come from: git:PATH of a clone with history adds commits.",
)
@click.option("--offline", is_flag=True, help="Use cached downloads only.")
@json_option
@click.pass_obj
def command(
    workspace: Workspace,
    /,
    place: str,
    wheel: Path | None,
    installed: bool,
    python: str,
    spec: str,
    offline: bool,
    as_json: bool,
) -> int:
    """Tell which overlay, patch and hunk, or which upstream release, each line comes from.

    PATH is a file on disk, in a tree that `apply` made or in an unpacked or installed wheel; with
    --wheel or --installed it is the file's path inside.

    \b
    Examples:
      mindspeed-overlay blame megatron/core/transformer/mlp.py:85 --installed
      mindspeed-overlay blame megatron/core/transformer/mlp.py --wheel dist/megatron_core-*.whl
      mindspeed-overlay blame work/megatron/core/utils.py:450-480 --source git:../Megatron-LM
    """  # fmt: skip
    if wheel and installed:
        raise click.UsageError("give --wheel or --installed, not both.")
    match = _PLACE.fullmatch(place)
    assert match is not None
    blamed = _blame(match["path"], wheel, installed, python)
    if spec:
        blamed = _add_upstream(workspace, blamed, spec, offline)
    first = int(match["first"] or 1)
    last = int(match["last"] or match["first"] or len(blamed.origins))
    shown = blamed.origins[first - 1 : last]
    if not shown and match["first"]:
        raise click.UsageError(f"{match['path']} has {len(blamed.origins)} lines.")
    if as_json:
        lines = [origin.to_json() for origin in shown]
        print_json({"path": blamed.path, "release": blamed.release, "lines": lines})
        return 0
    width = max((len(origin.describe()) for origin in shown), default=0)
    for origin in shown:
        click.echo(f"{origin.line:5} {origin.describe():{width}} | {origin.text}")
    return 0


def _blame(path: str, wheel: Path | None, installed: bool, python: str) -> Blamed:
    from mindspeed_overlay.blame import blame_folder, blame_wheel, find_build_root
    from mindspeed_overlay.blame_git import blame_repository, find_repository
    from mindspeed_overlay.errors import Problem, UsageError

    if wheel:
        return blame_wheel(wheel, path)
    if installed:
        return blame_folder(_find_site(python or sys.executable), path)
    file = Path(path).absolute()
    if not file.is_file():
        raise UsageError(Problem(code="E204", path=path, message=f"there is no file {path}"))
    if root := find_build_root(file):
        return blame_folder(root, file.relative_to(root).as_posix())
    if root := find_repository(file):
        return blame_repository(root, file.relative_to(root).as_posix())
    message = f"{path} is neither in a build nor in a tree that `mindspeed-overlay apply` made"
    raise UsageError(Problem(code="E204", path=path, message=message))


def _find_site(python: str) -> Path:
    from mindspeed_overlay.errors import Problem, UsageError
    from mindspeed_overlay.installed import find_import_path
    from mindspeed_overlay.wheelname import BUILD_JSON

    for folder in find_import_path(python, Path.cwd())[0]:
        if (folder / BUILD_JSON).is_file():
            return folder
    message = f"{python} has no megatron-core that this tool built"
    raise UsageError(Problem(code="E204", message=message))


def _add_upstream(workspace: Workspace, blamed: Blamed, spec: str, offline: bool) -> Blamed:
    from mindspeed_overlay.blame import add_upstream
    from mindspeed_overlay.blame_git import blame_upstream
    from mindspeed_overlay.source import open_source

    release = workspace.pins.get(blamed.release)
    floor = release.python.removeprefix(">=")
    tree = "full" if spec.startswith("git") else "core"
    source = open_source(release, spec=spec, tree=tree, offline=offline, python=floor)
    pristine = source.files.get(blamed.path)
    if pristine is None:
        return blamed
    where = spec.partition(":")[2]
    local = Path(where).expanduser() if spec.startswith("git:") and "://" not in where else None
    commits = {}
    if local is not None and local.is_dir():
        commits = blame_upstream(local, release.commit, blamed.path)
    return add_upstream(blamed, pristine, commits)
