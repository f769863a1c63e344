"""An unfinished port on disk: what was asked, and how a person decided so far.

What was carried is not stored. It follows from the request, the overlay set and the decisions, so a
run that was killed anywhere is gone on with by doing it again.
"""

import json
import shutil
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from mindspeed_overlay.errors import DefinitionError, Problem, UsageError
from mindspeed_overlay.staging import write_atomically
from mindspeed_overlay.tree import sha256

FORMAT = 2


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the command line asked for."""

    last: str
    first: str = ""
    ids: tuple[str, ...] = ()
    spec: str = "pypi"
    offline: bool = False
    again: bool = False
    skip: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Decision:
    """How a person left one file.

    Attributes:
        overlay, target: whose, and which file.
        met: SHA-256 of the file that it was decided for, without the overlay.
        data: SHA-256 of the file as it was left.
    """

    overlay: str
    target: str
    met: str
    data: str


@dataclass(frozen=True, kw_only=True)
class State:
    """An unfinished port.

    Attributes:
        request: what was asked for.
        today: the day that it began.
        inputs: a digest of the overlay set's patches.
        decisions: in the order made.
        current: the overlay that is laid out in the work repository.
        shown: for its files the SHA-256 of what was laid out.
        begun: files that a person began to solve: what was laid out, and how far they are.
    """

    request: Request
    today: str
    inputs: str
    decisions: tuple[Decision, ...] = ()
    current: str = ""
    shown: dict[str, str] = field(default_factory=dict)
    begun: dict[str, tuple[str, str]] = field(default_factory=dict)


class Store:
    """The work folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()

    @property
    def repository(self) -> Path:
        """Where conflicts are laid out."""
        return self.folder / "tree"

    @property
    def exists(self) -> bool:
        """Whether there is an unfinished port."""
        return (self.folder / "port.json").is_file()

    def load(self) -> State:
        """The unfinished port.

        Raises:
            UsageError: E222, there is none.
            DefinitionError: E535, it was written by another version, or is damaged.
        """
        place = self.folder / "port.json"
        try:
            table = json.loads(place.read_text("utf-8"))
            if table.pop("format") != FORMAT:
                raise ValueError("another format")
            return _read(table)
        except FileNotFoundError as error:
            message = f"there is no unfinished port in {self.folder}"
            hint = "begin one: `mindspeed-overlay port --to TAG`"
            raise UsageError(Problem(code="E222", message=message, hint=hint)) from error
        except (ValueError, KeyError, TypeError) as error:
            message = f"{place} can't be read: {error}"
            hint = "`mindspeed-overlay port --abort` removes it; the overlays are untouched"
            raise DefinitionError(Problem(code="E535", message=message, hint=hint)) from error

    def save(self, state: State) -> None:
        """Keep a port; the folder hides itself from the git repository around it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not (self.folder / ".gitignore").is_file():
            write_atomically(self.folder / ".gitignore", b"*\n")
        text = json.dumps({"format": FORMAT, **asdict(state)}, indent=2)
        write_atomically(self.folder / "port.json", text.encode() + b"\n")

    def keep(self, data: bytes) -> str:
        """Keep a file by its hash."""
        name = sha256(data)
        (self.folder / "files").mkdir(parents=True, exist_ok=True)
        if not (self.folder / "files" / name).is_file():
            write_atomically(self.folder / "files" / name, data)
        return name

    def get(self, name: str) -> bytes:
        """A kept file."""
        return (self.folder / "files" / name).read_bytes()

    def remove(self) -> None:
        """Forget everything. `port.json` goes first: what a killed removal leaves is no port."""
        (self.folder / "port.json").unlink(missing_ok=True)
        for place in sorted(self.folder.glob("*")):
            shutil.rmtree(place) if place.is_dir() else place.unlink()
        shutil.rmtree(self.folder, ignore_errors=True)


def decide(state: State, *decisions: Decision) -> State:
    """The state with decisions added; a newer one on the same file replaces the older."""
    kept = {(d.overlay, d.target): d for d in (*state.decisions, *decisions)}
    return replace(state, decisions=tuple(kept.values()))


def _read(table: dict[str, Any]) -> State:
    request = table.pop("request")
    listed: dict[str, Any] = {key: tuple(request.pop(key)) for key in ("ids", "skip")}
    decisions = tuple(Decision(**d) for d in table.pop("decisions"))
    begun = {path: (met, data) for path, (met, data) in table.pop("begun").items()}
    return State(request=Request(**request, **listed), decisions=decisions, begun=begun, **table)
