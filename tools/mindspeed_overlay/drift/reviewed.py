"""`reviewed.toml`: the states of upstream symbols that somebody has read with an overlay in mind.

    [symbols]
    "megatron.core.utils:get_model_config" = [
      "core_v0.12.1 9e2610869bd140691b3b d0d75337ac0fa573204b",
    ]

One line for each state: the oldest release looked at that has it, its signature, its body. The file
is written by `drift --accept`, sorted, so that merges of two branches seldom meet.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from mindspeed_overlay.errors import DefinitionError, Problem
from mindspeed_overlay.fingerprint import Fingerprint
from mindspeed_overlay.staging import write_atomically

REVIEWED = "reviewed.toml"

_ENTRY = re.compile(r"(\S+) ([0-9a-f]+|-) ([0-9a-f]+|-)")
_HEAD = (
    "# Upstream symbols this overlay edits or uses, in the states that were reviewed.\n"
    "# Written by `mindspeed-overlay drift --accept`.\n\n[symbols]\n"
)


@dataclass(frozen=True)
class Reviewed:
    """Symbol to (release, state), as recorded."""

    states: Mapping[str, tuple[tuple[str, Fingerprint], ...]]

    def covers(self, symbol: str, state: Fingerprint) -> bool:
        """Whether this state was reviewed, at least as closely as it is looked at now."""
        return any(_covers(known, state) for _, known in self.states.get(symbol, ()))

    def last_before(self, symbol: str, tag: str, order: tuple[str, ...]) -> str:
        """The newest release up to `tag` with a reviewed state, else any, else ""."""
        tags = [known for known, _ in self.states.get(symbol, ()) if known in order]
        older = [known for known in tags if order.index(known) <= order.index(tag)]
        return max(older or tags, key=order.index, default="")

    def with_states(
        self, tag: str, states: Iterable[tuple[str, Fingerprint]], order: tuple[str, ...]
    ) -> "Reviewed":
        """The same and these; a state that is known keeps its line."""
        merged = dict(self.states)
        for symbol, state in states:
            if not self.covers(symbol, state):
                known = [*merged.get(symbol, ()), (tag, state)]
                known.sort(key=lambda entry: order.index(entry[0]) if entry[0] in order else -1)
                merged[symbol] = tuple(known)
        return Reviewed(merged)

    def to_bytes(self) -> bytes:
        """The canonical file."""
        rows = []
        for symbol in sorted(self.states):
            lines = "".join(f'  "{t} {s.signature} {s.body}",\n' for t, s in self.states[symbol])
            rows.append(f'"{symbol}" = [\n{lines}]\n')
        return (_HEAD + "".join(rows)).encode()


def _covers(known: Fingerprint, state: Fingerprint) -> bool:
    return state.signature in ("-", known.signature) and state.body in ("-", known.body)


def read_reviewed(folder: Path) -> Reviewed | None:
    """The record of the overlay in `folder`; None where there is none.

    Raises:
        DefinitionError: E406, the file says something else.
    """
    path = folder / REVIEWED
    try:
        symbols = tomllib.loads(path.read_text("utf-8"))["symbols"]
        return Reviewed({key: tuple(map(_read_entry, lines)) for key, lines in symbols.items()})
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        hint = "restore it; `mindspeed-overlay drift --accept` writes it"
        problem = Problem(code="E406", path=str(path), message=f"{path}: {error}", hint=hint)
        raise DefinitionError(problem) from error


def _read_entry(line: str) -> tuple[str, Fingerprint]:
    match = _ENTRY.fullmatch(line)
    if match is None:
        raise ValueError(f"{line!r} is not 'TAG SIGNATURE BODY'")
    return match[1], Fingerprint(match[2], match[3])


def write_reviewed(folder: Path, reviewed: Reviewed) -> bool:
    """Write the record; whether that changed the file."""
    path, data = folder / REVIEWED, reviewed.to_bytes()
    if path.is_file() and path.read_bytes() == data:
        return False
    write_atomically(path, data)
    return True
