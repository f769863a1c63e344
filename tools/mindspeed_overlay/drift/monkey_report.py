"""Print what becomes of somebody's runtime patches."""

from pathlib import Path
from typing import Any

import click

from mindspeed_overlay.cli import print_json
from mindspeed_overlay.drift.monkey import read_monkey_patches
from mindspeed_overlay.drift.monkey_fate import (
    Fate,
    count_fates,
    find_targets,
    follow_targets,
    guess_base,
)
from mindspeed_overlay.drift.survey import Survey


def report_monkey_patches(
    survey: Survey, folder: Path, *, to: str | None, since: str | None, as_json: bool
) -> int:
    """Follow the runtime patches of `folder` from their base release to one, or all, later ones."""
    patches = read_monkey_patches(folder)
    tags = survey.order
    base = survey.pins.get(since).tag if since else ""
    if not base:
        base = guess_base(patches, {tag: survey.symbols(tag).files for tag in tags})
    old = survey.symbols(base)
    targets = find_targets(patches, old.files)
    later = [survey.pins.get(to).tag] if to else list(tags[tags.index(base) + 1 :])
    fates = {tag: follow_targets(targets.known, old, survey.symbols(tag)) for tag in later}
    report: dict[str, Any] = {
        "base": base,
        "base_guessed": not since,
        "registrations": len(patches.registrations),
        "targets": len(targets.known) + len(targets.others),
        "followed": len(targets.known),
        "replaced": sum(t.is_replaced for t in targets.known),
        "not_followed": dict(targets.others),
        "unread": list(patches.unread),
        "releases": {tag: count_fates(found) for tag, found in fates.items()},
    }
    if as_json:
        report["fates"] = {tag: [f.to_json() for f in found] for tag, found in fates.items()}
        print_json(report)
        return 0
    _print(report, fates)
    return 0


def _print(report: dict[str, Any], fates: dict[str, list[Fate]]) -> None:
    guess = " (most targets are there)" if report["base_guessed"] else ""
    click.echo(
        f"base {report['base']}{guess}: {report['registrations']} registrations of "
        f"{report['targets']} targets; {report['followed']} are functions, methods or classes "
        f"there, {report['replaced']} of them replaced whole"
    )
    columns = {
        "same": "same",
        "changed": "changed",
        "gone": "gone",
        "silently": "gone silently",
        "replaced, stale": "replaced changed",
        "replaced, gone": "replaced gone",
        "wrapped, changed": "wrapped changed",
        "wrapped, gone": "wrapped gone",
    }
    click.echo("release       " + "  ".join(columns))
    for tag, row in report["releases"].items():
        cells = (str(row[key]).rjust(len(title)) for title, key in columns.items())
        click.echo(f"{tag:14}" + "  ".join(cells))
    if fates:
        tag, found = list(fates.items())[-1]
        for fate in found:
            if fate.kind != "same":
                click.echo(_describe(fate, tag))
    for name, why in report["not_followed"].items():
        click.echo(f"not followed: {name}: {why}")
    for place in report["unread"]:
        click.echo(f"unread: {place}")


def _describe(fate: Fate, tag: str) -> str:
    kind = {"silent": "gone, silently", "loud": "gone, loudly"}.get(fate.missing, fate.kind)
    stale = ", replaced whole: stale" if fate.is_stale else ""
    by = ", ".join(f"{r.path}:{r.line}" for r in fate.target.registrations)
    now = "".join(f"\n    now {s.symbol}? ({s.similarity:.0%})" for s in fate.change.successors)
    return f"{tag} {fate.target.name}: {kind}{stale} ({by}){now}"
