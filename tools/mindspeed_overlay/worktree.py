"""What `apply` notes in a repository that it makes, for `blame` and `refresh`."""

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mindspeed_overlay.errors import Problem, UsageError
from mindspeed_overlay.provenance import LineRange
from mindspeed_overlay.source.transport import read_objects

_NOTE = Path(".git") / "mindspeed-overlay.json"


@dataclass(frozen=True)
class Worktree:
    """A tree that `apply` made.

    Attributes:
        head: the commit of the last overlay.
        base: the commit before it: what an edited overlay changes.
        lines: path to the lines that hunks brought, at `head`.
        own: path of each new file to its overlay.
        edits: the overlay that is edited here (`apply --edit`), "" for none.
        overlays_folder: the overlay set that it came from.
    """

    release: str
    tree: str
    head: str
    base: str
    lines: Mapping[str, tuple[LineRange, ...]]
    own: Mapping[str, str]
    edits: str = ""
    overlays_folder: str = ""

    def to_bytes(self) -> bytes:
        """As it is noted."""
        table = {
            "format": 1,
            **self.__dict__,
            "lines": {path: [r.to_json() for r in found] for path, found in self.lines.items()},
        }
        return json.dumps(table).encode()


def write_note(root: Path, made: Worktree) -> None:
    """Note what was made in the repository at `root`."""
    (root / _NOTE).write_bytes(made.to_bytes())


def read_worktree(root: Path) -> Worktree:
    """The note in the repository at `root`.

    Raises:
        UsageError: E204, there is none: `apply` did not make this repository.
    """
    try:
        table = json.loads((root / _NOTE).read_bytes())
        if table.pop("format") != 1:
            raise ValueError("written by another version of the tool")
        lines = {
            path: tuple(LineRange(*found) for found in rows)
            for path, rows in table.pop("lines").items()
        }
        return Worktree(lines=lines, **table)
    except (OSError, ValueError, KeyError, TypeError) as error:
        message = f"{root} is no tree that this version of `mindspeed-overlay apply` made"
        hint = "make one: `mindspeed-overlay apply DIR`, or `apply DIR --edit ID` to edit"
        raise UsageError(
            Problem(code="E204", path=str(root), message=message, hint=hint)
        ) from error


def read_committed(root: Path, commit: str, paths: Iterable[str]) -> dict[str, bytes]:
    """Files of a commit, byte for byte; without those that it does not have."""
    found = {}
    with read_objects(root) as objects:
        for path in paths:
            with suppress(ValueError):
                found[path] = bytes(objects.get_object_data(f"{commit}:{path}")[3])
    return found
