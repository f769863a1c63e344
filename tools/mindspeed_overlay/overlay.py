"""Overlay definitions: what `overlay.toml` says, and the files and patches beside it.

An overlay set is a folder with `series` (a `revision N` line, then one `<family>/<feature>` a line)
and one folder per overlay. `files/` and `patches/<since-tag>/` hold whole sets: for a release, the
newest one not after it counts.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from mindspeed_overlay.errors import DefinitionError, Problem
from mindspeed_overlay.hook import HOOKS_OVERLAY, Hook, read_hook
from mindspeed_overlay.option import Option, find_clashes, find_missing_checks, read_option

_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*/[a-z0-9]+(-[a-z0-9]+)*")
OPTIONS_OVERLAY = "base/options"
"""Its code reads the generated table of options."""

_BOUND = re.compile(r"(>=|<=|<|>|==)\s*([^\s,]+)")


@dataclass(frozen=True, kw_only=True)
class Overlay:
    """One feature: its definition and its contents, all in memory."""

    id: str
    summary: str
    level: int
    folder: Path
    requires: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    releases: str = ""
    torch_npu: str = ""
    upstream_status: str = ""
    remove_when: str = ""
    by_level: bool = False
    """Has no option of its own: optimization_level switches it on."""
    options: tuple[Option, ...] = ()
    hooks: tuple[Hook, ...] = ()
    file_sets: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)
    patch_sets: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)

    @property
    def family(self) -> str:
        """The first half of the id."""
        return self.id.partition("/")[0]

    def serves(self, tag: str, order: tuple[str, ...]) -> bool:
        """Whether `releases` admits `tag`; `order` lists all tags, oldest first."""
        position = order.index(tag)
        compare = {
            ">=": lambda bound: position >= bound,
            "<=": lambda bound: position <= bound,
            ">": lambda bound: position > bound,
            "<": lambda bound: position < bound,
            "==": lambda bound: position == bound,
        }
        return all(compare[op](order.index(bound)) for op, bound in _BOUND.findall(self.releases))

    def files_for(self, tag: str, order: tuple[str, ...]) -> Mapping[str, bytes]:
        """New files at their final paths: `files/` unless a newer `files@<since>/` replaces it."""
        return _newest(self.file_sets, tag, order)

    def patches_for(self, tag: str, order: tuple[str, ...]) -> Mapping[str, bytes]:
        """Patch file names to contents, from the newest `patches/<since>/` not after `tag`."""
        return _newest(self.patch_sets, tag, order)

    def patch_since(self, tag: str, order: tuple[str, ...]) -> str:
        """The `<since-tag>` whose patches serve `tag`, or an empty string."""
        return _newest_key(self.patch_sets, tag, order) or ""


def _newest_key(sets: Mapping[str, Any], tag: str, order: tuple[str, ...]) -> str | None:
    older = order[: order.index(tag) + 1]
    return next((since for since in reversed(older) if since in sets), "" if "" in sets else None)


def _newest(
    sets: Mapping[str, Mapping[str, bytes]], tag: str, order: tuple[str, ...]
) -> Mapping[str, bytes]:
    key = _newest_key(sets, tag, order)
    return sets[key] if key is not None else {}


@dataclass(frozen=True)
class OverlaySet:
    """All overlays of a folder, in series order, with the revision that raises wheel versions."""

    overlays: tuple[Overlay, ...]
    revision: int

    def get(self, overlay_id: str) -> Overlay:
        """The overlay of that id; DefinitionError E401 with the nearest names if there is none."""
        for overlay in self.overlays:
            if overlay.id == overlay_id:
                return overlay
        import difflib

        near = difflib.get_close_matches(overlay_id, [o.id for o in self.overlays], cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise DefinitionError(
            Problem(
                code="E401",
                message=f"there is no overlay {overlay_id!r}",
                hint=f"{hint}`mindspeed-overlay list` shows all",
            )
        )


def load_overlays(folder: Path, *, tags: tuple[str, ...]) -> OverlaySet:
    """Read an overlay set from disk.

    Args:
        folder: holds `series` and the overlay folders.
        tags: the pinned releases, oldest first; bounds and since-folders must be among them.

    Raises:
        DefinitionError: every wrong definition of the set, together.
    """
    series = folder / "series"
    if not series.is_file():
        raise DefinitionError(
            Problem(code="E402", message=f"{folder} is no overlay set: it has no `series` file")
        )
    problems: list[Problem] = []
    revision, ids = _read_series(series, problems)
    overlays = [_read_overlay(folder, name, tags, problems) for name in ids]
    found = {f"{p.parent.parent.name}/{p.parent.name}" for p in folder.glob("*/*/overlay.toml")}
    problems += [
        Problem(code="E403", overlay=name, message="is not in `series`", hint=f"add it to {series}")
        for name in sorted(found - set(ids))
    ]
    known = {o.id for o in overlays if o}
    for overlay in filter(None, overlays):
        problems += [
            Problem(code="E404", overlay=overlay.id, message=f"{word} {other}, which is not here")
            for word, others in (
                ("requires", overlay.requires),
                ("conflicts with", overlay.conflicts),
            )
            for other in others
            if other not in known
        ]
        problems += _misordered(overlay, ids)
    problems += _misused_options([o for o in overlays if o])
    if problems:
        raise DefinitionError(*problems)
    return OverlaySet(tuple(o for o in overlays if o), revision)


def _misordered(overlay: Overlay, ids: list[str]) -> list[Problem]:
    return [
        Problem(
            code="E405",
            overlay=overlay.id,
            message=f"stands before {other} in `series`, which it requires",
        )
        for other in overlay.requires
        if other in ids and ids.index(other) > ids.index(overlay.id)
    ]


def _misused_options(overlays: list[Overlay]) -> list[Problem]:
    """Options that clash, and options of an overlay that does not require what makes them work."""
    pairs = [(overlay.id, option) for overlay in overlays for option in overlay.options]
    sets = [files for overlay in overlays for files in overlay.file_sets.values()]
    files = {path: data for found in sets for path, data in found.items()}
    problems = [
        Problem(code="E406", overlay=owner, message=message)
        for owner, message in (*find_clashes(pairs), *find_missing_checks(pairs, files))
    ]
    return problems + _find_missing_bases(overlays)


def _find_missing_bases(overlays: list[Overlay]) -> list[Problem]:
    requires = {overlay.id: overlay.requires for overlay in overlays}
    bases = (("options", OPTIONS_OVERLAY), ("hooks", HOOKS_OVERLAY))
    return [
        Problem(
            code="E406",
            overlay=overlay.id,
            message=f"has {what} and does not require {base}, which makes them work",
        )
        for what, base in bases
        if base in requires
        for overlay in overlays
        if getattr(overlay, what) and not _leads_to(overlay.id, base, requires)
    ]


def _leads_to(start: str, end: str, requires: Mapping[str, tuple[str, ...]]) -> bool:
    seen, pending = set(), [start]
    while pending:
        name = pending.pop()
        if name == end:
            return True
        if name not in seen:
            seen.add(name)
            pending += requires.get(name, ())
    return False


def _read_series(series: Path, problems: list[Problem]) -> tuple[int, list[str]]:
    revision, ids = 0, []
    for number, raw in enumerate(series.read_text("utf-8").splitlines(), 1):
        line = raw.partition("#")[0].strip()
        if match := re.fullmatch(r"revision (\d+)", line):
            revision = int(match[1])
        elif line in ids or (line and not _ID.fullmatch(line)):
            what = "stands there twice" if line in ids else "is not `<family>/<feature>`"
            problems.append(
                Problem(code="E402", path=str(series), line=number, message=f"{line!r} {what}")
            )
        elif line:
            ids.append(line)
    if not revision:
        problems.append(
            Problem(code="E402", message=f"{series} has no `revision N` line, N above 0")
        )
    return revision, ids


def _read_overlay(
    root: Path, name: str, tags: tuple[str, ...], problems: list[Problem]
) -> Overlay | None:
    folder = root / name

    def wrong(message: str, hint: str = "") -> None:
        problems.append(Problem(code="E406", overlay=name, message=message, hint=hint))

    try:
        table = tomllib.loads((folder / "overlay.toml").read_text("utf-8"))
    except FileNotFoundError:
        wrong("has no overlay.toml", f"`mindspeed-overlay new {name}` makes one")
        return None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        wrong(f"overlay.toml: {error}")
        return None
    values = {key.replace("-", "_"): value for key, value in table.items()}
    tables = values.pop("option", [])
    options = tuple(filter(None, (read_option(t, tags=tags, wrong=wrong) for t in tables)))
    hooks = tuple(filter(None, (read_hook(t, wrong=wrong) for t in values.pop("hook", []))))
    own = {"folder", "options", "hooks", "file_sets", "patch_sets"}
    allowed = {f.name for f in fields(Overlay)} - own
    for key in sorted(set(values) - allowed):
        wrong(f"overlay.toml: unknown key {key!r}")
    for key in ("id", "summary", "level"):
        if key not in values:
            wrong(f"overlay.toml: {key} is missing")
    if values.get("id", name) != name:
        wrong(f"overlay.toml says id = {values['id']!r}")
    if values.get("level") not in (0, 1, 2):
        wrong("level must be 0, 1 or 2")
    _check_bounds(str(values.get("releases", "")), tags, wrong)
    given: dict[str, Any] = {
        key: str(values.get(key, "")) for key in allowed - {"id", "level", "by_level"}
    }
    given["by_level"] = values.get("by_level", False)
    given |= {key: tuple(values.get(key, ())) for key in ("requires", "conflicts")}
    return Overlay(
        id=name,
        level=values.get("level", 0),
        folder=folder,
        options=options,
        hooks=hooks,
        file_sets=_read_file_sets(folder, tags, wrong),
        patch_sets=_read_patch_sets(folder, tags, wrong),
        **given,
    )


def _check_bounds(releases: str, tags: tuple[str, ...], wrong: Any) -> None:
    rest = _BOUND.sub("", releases).replace(",", "").strip()
    if rest:
        wrong(
            f"releases: cannot read {rest!r}", 'write bounds like ">=core_v0.14.0, <core_v0.19.0"'
        )
    for _, tag in _BOUND.findall(releases):
        if tag not in tags:
            wrong(f"releases names {tag}, which is not pinned", "`mindspeed-overlay pin list`")


def _read_file_sets(folder: Path, tags: tuple[str, ...], wrong: Any) -> dict[str, dict[str, bytes]]:
    sets = {}
    for root in sorted(folder.glob("files*")):
        name, at, since = root.name.partition("@")
        if name != "files" or (at and since not in tags):
            wrong(f"{root.name}/: since-tag is not pinned")
        sets[since] = {
            path.relative_to(root).as_posix(): path.read_bytes()
            for path in sorted(root.rglob("*"))
            if path.is_file() and "__pycache__" not in path.parts
        }
    for path in (p for files in sets.values() for p in files):
        if path == "megatron/__init__.py" or path.partition("/")[0] not in (
            "megatron",
            "mindspeed",
        ):
            wrong(f"files/ may not hold {path}: only megatron/ and mindspeed/ are packaged")
    return sets


def _read_patch_sets(
    folder: Path, tags: tuple[str, ...], wrong: Any
) -> dict[str, dict[str, bytes]]:
    sets = {}
    for root in sorted((folder / "patches").glob("*")):
        if root.name not in tags:
            wrong(f"patches/{root.name}/: since-tag is not pinned", "`mindspeed-overlay pin list`")
        sets[root.name] = {path.name: path.read_bytes() for path in sorted(root.glob("*.patch"))}
    return sets
