"""`pin`: the pinned Megatron releases."""

import click

from mindspeed_overlay.cli import Workspace, print_json
from mindspeed_overlay.data import default_licenses
from mindspeed_overlay.errors import Problem, VerifyError
from mindspeed_overlay.options import json_option
from mindspeed_overlay.staging import write_atomically
from mindspeed_overlay.tree import sha256

_git_option = click.option(
    "--git",
    metavar="URL",
    help="Repository to compare with: an address or a path; `nvidia` is NVIDIA's.",
)


@click.group(name="pin")
def command() -> None:
    """List, verify or add pinned Megatron releases (megatron_pin.txt).

    \b
    Examples:
      mindspeed-overlay pin list
      mindspeed-overlay pin verify core_v0.16.1 --git ../Megatron-LM
      mindspeed-overlay --pins megatron_pin.txt pin add core_v0.19.2
    """


@command.command(name="list")
@json_option
@click.pass_obj
def list_pins(workspace: Workspace, /, as_json: bool) -> int:
    """List the pinned releases in their order."""
    from mindspeed_overlay.pinning import describe_pins

    rows = describe_pins(workspace.pins)
    if as_json:
        print_json(rows)
        return 0
    for row, release in zip(rows, workspace.pins.releases, strict=True):
        mark = "  (default)" if row["default"] else ""
        yanked = f"  yanked: {release.yanked}" if release.yanked else ""
        wheels = f"{len(release.wheels)} wheels"
        commit = release.commit[:12] or "no commit   "
        click.echo(f"{release.tag:<14} {commit} {release.python:<7} {wheels}{mark}{yanked}")
    return 0


@command.command(name="verify")
@click.argument("tag", required=False)
@_git_option
@click.option("--offline", is_flag=True, help="Use cached downloads only.")
@json_option
@click.pass_obj
def verify_pins(
    workspace: Workspace, /, tag: str | None, git: str | None, offline: bool, as_json: bool
) -> int:
    """Check every hash and digest of TAG, or of all releases, against its sources."""
    from mindspeed_overlay.pinning import verify_release
    from mindspeed_overlay.source.cache import Cache, find_cache_dir

    pins = workspace.pins
    releases = [pins.get(tag)] if tag else list(pins.releases)
    cache = Cache(find_cache_dir())
    rows = []
    for release in releases:
        checks = verify_release(
            release,
            git="" if git == "nvidia" else git,
            cache=cache,
            offline=offline,
            progress=workspace.verbosity >= 0,
        )
        rows += [(release.tag, check) for check in checks]
        for check in () if as_json else checks:
            detail = f": {check.detail}" if check.detail else ""
            click.echo(f"{release.tag}  {check.result:<11} {check.subject}{detail}")
    wrong = [(name, check) for name, check in rows if check.result == "wrong"]
    if as_json:
        fields = ("subject", "result", "detail")
        print_json([{"tag": t, **{f: getattr(c, f) for f in fields}} for t, c in rows])
    if wrong:
        raise VerifyError(
            *(Problem(code="E908", message=f"{t}: {c.subject}: {c.detail}") for t, c in wrong)
        )
    return 0


@command.command(name="add")
@click.argument("tag")
@_git_option
@click.option("--commit", default="", metavar="SHA", help="Pin this commit, not the tag's.")
@click.option("--reason", default="", help="Why commit and wheels differ, where they do.")
@click.pass_obj
def add_pin(workspace: Workspace, /, tag: str, git: str | None, commit: str, reason: str) -> int:
    """Add a release to the pin file: every wheel is read and compared with the commit.

    Without --git the release is pinned from PyPI alone, with no commit.
    """
    from mindspeed_overlay.pinning import add_release
    from mindspeed_overlay.source.cache import Cache, find_cache_dir

    addition = add_release(
        workspace.pins_file.read_text("utf-8"),
        tag,
        cache=Cache(find_cache_dir()),
        git="" if git == "nvidia" else git,
        commit=commit,
        reason=reason,
        progress=workspace.verbosity >= 0,
    )
    if addition.license_text:
        license_file = default_licenses() / f"{sha256(addition.license_text)}.txt"
        if not license_file.exists():
            write_atomically(license_file, addition.license_text)
            click.echo(f"wrote {license_file}")
    write_atomically(workspace.pins_file, addition.text.encode())
    for note in addition.notes:
        workspace.note(note)
    click.echo(f"pinned {addition.release.tag} with {len(addition.release.wheels)} wheels")
    return 0
