"""`drift`: upstream code that overlays edit or use, and what becomes of it by release."""

from pathlib import Path
from typing import Any

import click

from mindspeed_overlay.cli import Workspace, print_json
from mindspeed_overlay.options import _complete_overlay, _complete_release, json_option
from mindspeed_overlay.overlay import Overlay


@click.command(name="drift")
@click.argument("ids", metavar="[ID]...", nargs=-1, shell_complete=_complete_overlay)
@click.option(
    "--to", metavar="TAG", shell_complete=_complete_release, help="Compare with this release."
)
@click.option(
    "--from",
    "since",
    metavar="TAG",
    shell_complete=_complete_release,
    help="With --to: compare from here; the pinned release before it if not given.",
)
@click.option("--diff", is_flag=True, help="Show the upstream change of each symbol.")
@click.option("--accept", is_flag=True, help="Record what was shown as read, in reviewed.toml.")
@click.option(
    "--monkey-patches",
    "monkey",
    metavar="DIR",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Look at the runtime patches of this source tree instead.",
)
@click.option(
    "--source",
    "spec",
    default="pypi",
    show_default=True,
    metavar="SPEC",
    help="As in `build`; a git source covers megatron.training and legacy too.",
)
@click.option("--offline", is_flag=True, help="Use cached downloads only.")
@json_option
@click.pass_obj
def command(
    workspace: Workspace,
    /,
    ids: tuple[str, ...],
    to: str | None,
    since: str | None,
    diff: bool,
    accept: bool,
    monkey: Path | None,
    spec: str,
    offline: bool,
    as_json: bool,
) -> int:
    """Show upstream symbols that overlays edit, extend, call or name, where they changed.

    Without --to: every release that an overlay serves, and what nobody has recorded as read there.
    With --to: each symbol between two releases: same, body changed, signature changed, moved or
    gone, also where the patches apply. Exits with 6 while something is unread. With --source
    git:PATH, --from and --to take any commit.

    \b
    Examples:
      mindspeed-overlay drift --to core_v0.19.0 --diff
      mindspeed-overlay drift fusions/fused-swiglu --accept
      mindspeed-overlay drift --monkey-patches ../MindSpeed --from core_v0.12.1 --json
    """  # fmt: skip
    from mindspeed_overlay.port.sources import open_survey

    if since and not (to or monkey):
        raise click.UsageError("--from needs --to.")
    names = [name for name in (since, to) if name]
    survey = open_survey(workspace, names, spec=spec, offline=offline)
    if monkey:
        from mindspeed_overlay.drift.monkey_report import report_monkey_patches

        if ids or accept or diff:
            raise click.UsageError("--monkey-patches goes with --to, --from and --json only.")
        return report_monkey_patches(survey, monkey, to=to, since=since, as_json=as_json)
    chosen = [survey.overlays.get(i) for i in ids] or list(survey.overlays.overlays)
    show = _show_between if to else _show_unreviewed
    return show(
        workspace, survey, chosen, to=to, since=since, diff=diff, accept=accept, as_json=as_json
    )


def _show_unreviewed(
    workspace: Workspace, survey: Any, chosen: list[Overlay], /, **options: Any
) -> int:
    from mindspeed_overlay.drift.reviewed import Reviewed, read_reviewed, write_reviewed
    from mindspeed_overlay.drift.survey import find_unreviewed

    rows: list[dict[str, Any]] = []
    failed: list[Any] = []
    order = survey.order
    reviewed = {o.id: read_reviewed(o.folder) for o in chosen}
    accepted = {o.id: reviewed[o.id] or Reviewed({}) for o in chosen}
    for release in survey.pins.releases:
        for overlay in chosen:
            if not overlay.serves(release.tag, order):
                continue
            looked = survey.look(overlay, release)
            failed += looked.problems
            symbols = survey.symbols(release.tag)
            found = find_unreviewed(
                looked.uses, symbols, accepted[overlay.id], tag=release.tag, order=order
            )
            for item in found:
                row = {"overlay": overlay.id, "release": release.tag, **item.to_json()}
                if options["diff"] and item.since:
                    row["diff"] = _diff(survey, item.use, item.since, release.tag)
                rows.append(row)
            # A state is asked for once, where it first appears.
            accepted[overlay.id] = accepted[overlay.id].with_states(
                release.tag, ((i.use.symbol, i.state) for i in found), order
            )
    if options["accept"]:
        for overlay in chosen:
            write_reviewed(overlay.folder, accepted[overlay.id])
    code = 0 if options["accept"] else 6 if rows else 0
    code = 5 if failed else code
    if options["as_json"]:
        problems = [p.to_json() for p in failed]
        print_json({"ok": code == 0, "unreviewed": rows, "problems": problems})
        return code
    for row in rows:
        place = f"{row['path']}:{row['line']}"
        since = f" since {row['since']}" if row["since"] else ""
        click.echo(
            f"{row['release']} {row['overlay']}: {row['what']}{since}: "
            f"{row['symbol']} ({row['how']}) {place}"
        )
        if "diff" in row:
            click.echo(row["diff"])
    for problem in failed:
        click.echo(str(problem), err=True)
    verb = "accepted" if options["accept"] else "to review"
    click.echo(f"{len(rows)} {verb}")
    return code


def _diff(survey: Any, use: Any, since: str, to: str) -> str:
    from mindspeed_overlay.drift.changes import compare_uses, diff_change

    old, new = survey.symbols(since), survey.symbols(to)
    changes = compare_uses([use], old, new)
    commits = "".join(f"upstream {c}\n" for c in survey.commits_of(use, since, to))
    return commits + "".join(diff_change(c, old, new, tags=(since, to)) for c in changes)


def _show_between(
    workspace: Workspace, survey: Any, chosen: list[Overlay], /, **options: Any
) -> int:
    from mindspeed_overlay.drift.between import compare_releases

    pins = survey.pins
    order = survey.order
    to = pins.get(options["to"]).tag
    if not options["since"] and order.index(to) == 0:
        raise click.UsageError(f"{to} is the oldest pinned release: give --from.")
    since = pins.get(options["since"]).tag if options["since"] else order[order.index(to) - 1]
    results = [
        compare_releases(survey, overlay, since=since, to=to, accept=options["accept"])
        for overlay in chosen
        if overlay.serves(since, order)
    ]
    unread = sum(len(r.unread) for r in results)
    code = 6 if unread else 0
    if options["as_json"]:
        rows = [r.to_json(survey, diff=options["diff"]) for r in results]
        print_json({"ok": code == 0, "from": since, "to": to, "overlays": rows})
        return code
    for result in results:
        click.echo(result.describe(survey, diff=options["diff"]))
    click.echo(f"{unread} to review")
    return code
