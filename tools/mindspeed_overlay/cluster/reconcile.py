"""Take a site-packages from any known state to a build, keep what it had, and take it back.

Old items are moved away whole, with their times and bytecode, and new ones moved in; a journal says
how far that went, so that a run killed at any moment is finished by the next one.
"""

import io
import json
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from mindspeed_overlay.cluster.sitestate import SiteState, item_of, list_files, read_state
from mindspeed_overlay.errors import PackagingError, Problem, VerifyError
from mindspeed_overlay.pins import Pins
from mindspeed_overlay.staging import write_atomically, write_files
from mindspeed_overlay.tree import sha256
from mindspeed_overlay.wheelname import BUILD_JSON

_FOLDER = ".mindspeed-overlay"
_JOURNAL = "journal.json"


@dataclass(frozen=True)
class Reconciled:
    """What was done: the state found, the version wanted, and whether anything changed."""

    before: SiteState
    version: str
    changed: bool


def reconcile(
    site: Path, wheel: bytes, pins: Pins, *, repository: Path | None = None
) -> Reconciled:
    """Make `site` hold the build of a verified wheel.

    Args:
        site: a site-packages folder.
        wheel: the wheel's bytes; the caller has verified them.
        pins: the releases that are known.
        repository: a git repository that may explain changed files.

    Raises:
        VerifyError: E931, files that nothing explains, all listed; nothing changed.
        PackagingError: E716, the disk refused; the next run finishes or undoes what was begun.
    """
    members = read_members(wheel)
    with _open_site(site) as store:
        state = read_state(site, pins, repository=repository)
        if state.unexplained:
            raise VerifyError(*_refuse_unexplained(site, state))
        version = json.loads(members[BUILD_JSON])["version"]
        if state.kind == "build" and state.version == version and _holds(site, members):
            return Reconciled(state, version, changed=False)
        items = sorted({item_of(path) for path in members})
        foreign = [i for i in items if (site / i).exists() and i not in state.items]
        if foreign:
            raise VerifyError(*(_refuse_item(site, item) for item in foreign))
        number = 1 + max((int(p.name) for p in store.glob("[0-9]*")), default=0)
        new = store / "new"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir()
        write_files(new, {**members, f"{_info_of(members)}/INSTALLER": b"mindspeed-overlay\n"})
        _swap(site, store, kept=str(number), old=list(state.items), new=items)
        return Reconciled(state, version, changed=True)


def take_back(site: Path, pins: Pins) -> SiteState:
    """Undo the last `reconcile` of a site; what it replaced is as it was.

    Raises:
        VerifyError: E932 there is nothing to undo, E931 what was put in has been changed since.
    """
    with _open_site(site) as store:
        kept = max(store.glob("[0-9]*"), key=lambda p: int(p.name), default=None)
        if kept is None:
            message = f"{site} has no state to go back to"
            raise VerifyError(Problem(code="E932", path=str(site), message=message))
        state = read_state(site, pins)
        if state.unexplained:
            raise VerifyError(*_refuse_unexplained(site, state))
        new = store / "new"
        shutil.rmtree(new, ignore_errors=True)
        kept.rename(new)
        items = json.loads((new / "items.json").read_text("utf-8"))
        _swap(site, store, kept="discard", old=list(state.items), new=items)
        return read_state(site, pins)


def read_members(wheel: bytes) -> dict[str, bytes]:
    """The files of a wheel."""
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _info_of(members: Mapping[str, bytes]) -> str:
    return next(p for p in members if p.endswith(".dist-info/RECORD")).removesuffix("/RECORD")


def _holds(site: Path, members: Mapping[str, bytes]) -> bool:
    return all(
        (site / path).is_file() and sha256((site / path).read_bytes()) == sha256(data)
        for path, data in members.items()
    )


@contextmanager
def _open_site(site: Path) -> Iterator[Path]:
    """Hold a site against other runs, and finish what a killed one began."""
    store = site / _FOLDER
    try:
        store.mkdir(exist_ok=True)
        with FileLock(store / "lock"):
            if (store / _JOURNAL).is_file():
                _roll_forward(site, store)
            yield store
    except OSError as error:
        message = f"cannot change {site}: {error.strerror or error}"
        hint = "run it again when there is room: it finishes what was begun"
        raise PackagingError(
            Problem(code="E716", path=str(site), message=message, hint=hint)
        ) from error


def _swap(site: Path, store: Path, *, kept: str, old: list[str], new: list[str]) -> None:
    journal = {"kept": kept, "old": old, "new": new}
    write_atomically(store / _JOURNAL, json.dumps(journal).encode())
    _roll_forward(site, store)


def _roll_forward(site: Path, store: Path) -> None:
    """Do what is left of a journal; every step is seen to be done or not by what is where."""
    journal = json.loads((store / _JOURNAL).read_text("utf-8"))
    kept, new = store / journal["kept"], store / "new"
    kept.mkdir(exist_ok=True)
    for item in journal["old"]:
        if not (kept / "items" / item).exists() and (site / item).exists():
            _move(site / item, kept / "items" / item)
    source = new / "items" if (new / "items").is_dir() else new
    for item in journal["new"]:
        if (source / item).exists():
            _move(source / item, site / item)
    write_atomically(kept / "items.json", json.dumps(journal["old"]).encode())
    if journal["kept"] == "discard":
        shutil.rmtree(kept)
    shutil.rmtree(new, ignore_errors=True)
    _remove_empty(site / "megatron")
    (store / _JOURNAL).unlink()


def _move(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    source.rename(target)


def _remove_empty(folder: Path) -> None:
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def _refuse_unexplained(site: Path, state: SiteState) -> list[Problem]:
    hint = "give the git repository that these changes are in with --explain, or remove them"
    return [
        Problem(
            code="E931",
            path=path,
            message=f"{site / path} is explained by no pin, build or repository",
            hint=hint if path == state.unexplained[-1] else "",
        )
        for path in state.unexplained
    ]


def _refuse_item(site: Path, item: str) -> Problem:
    files = ", ".join(list(list_files(site, [item]))[:5])
    message = f"{site / item} belongs to something else and is in the way: {files}"
    return Problem(code="E931", path=item, message=message, hint="uninstall what it belongs to")
