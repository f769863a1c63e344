"""Options that several commands share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from mindspeed_overlay.errors import DefinitionError, Problem
from mindspeed_overlay.plan import Selection

_F = TypeVar("_F", bound=Callable[..., Any])

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def _complete_overlay(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    return [o.id for o in _workspace(ctx).overlays.overlays if o.id.startswith(incomplete)]


def _complete_release(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    return [r.tag for r in _workspace(ctx).pins.releases if r.tag.startswith(incomplete)]


def _workspace(ctx: click.Context) -> Any:
    from mindspeed_overlay.cli import Workspace
    from mindspeed_overlay.data import default_overlays, default_pins

    return ctx.obj or Workspace(default_overlays(), default_pins(), 0)


release_option = click.option(
    "--release",
    metavar="TAG",
    shell_complete=_complete_release,
    help="Pinned release, by tag or version; the default one if not given.",
)


def overlay_argument(function: _F, *, required: bool = True) -> _F:
    """The ID argument, with completion."""
    return click.argument(
        "overlay_id",
        metavar="ID" if required else "[ID]",
        required=required,
        shell_complete=_complete_overlay,
    )(function)


def selection_options(function: _F) -> _F:
    """--feature, --level, --all, --without and --profile."""
    decorators = (
        click.option(
            "--feature",
            "features",
            metavar="ID",
            multiple=True,
            shell_complete=_complete_overlay,
            help="This overlay and what it requires; repeatable.",
        ),
        click.option("--level", type=click.IntRange(0, 2), help="All overlays up to this level."),
        click.option("--all", "everything", is_flag=True, help="Every overlay (the default)."),
        click.option(
            "--without",
            metavar="ID",
            multiple=True,
            shell_complete=_complete_overlay,
            help="Leave this overlay out; repeatable.",
        ),
        click.option(
            "--profile",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="TOML file with features, without and level.",
        ),
    )
    for decorator in reversed(decorators):
        function = decorator(function)
    return function


def read_selection(
    *,
    features: tuple[str, ...],
    level: int | None,
    everything: bool,
    without: tuple[str, ...],
    profile: Path | None,
) -> Selection:
    """The selection of the options above; what the command line says adds to the profile."""
    if everything and (features or level is not None):
        raise click.UsageError("--all takes no --feature or --level beside it.")
    if profile:
        table = _read_profile(profile)
        features += tuple(table.get("features", ()))
        without += tuple(table.get("without", ()))
        level = table.get("level") if level is None else level
    return Selection(tuple(dict.fromkeys(features)), tuple(dict.fromkeys(without)), level)


def _read_profile(profile: Path) -> dict[str, Any]:
    import tomllib

    try:
        table = tomllib.loads(profile.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DefinitionError(Problem(code="E407", message=f"{profile}: {error}")) from error
    unknown = sorted(set(table) - {"features", "without", "level"})
    good = (
        all(isinstance(table.get(k, []), list) for k in ("features", "without"))
        and table.get("level") in (None, 0, 1, 2)
        and not unknown
    )
    if not good:
        message = (
            f"{profile}: a profile holds the lists `features` and `without`, and `level` 0, 1 or 2"
        )
        raise DefinitionError(Problem(code="E407", message=message))
    return table
