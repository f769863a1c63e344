"""Where upstream moved a file: by content, with the similarity shown.

Only files that one release has and the other lacks are compared, as git does it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher

from mindspeed_overlay.patch_model import split_lines

LIKELY = 0.5
_SMALL = 0.4


@dataclass(frozen=True)
class Renamed:
    """The file that a removed one is taken for."""

    path: str
    similarity: float
    runner_up: str = ""

    def explain(self, old: str) -> str:
        """For a report."""
        other = f"; next is {self.runner_up}" if self.runner_up else ""
        return f"{old} is taken for {self.path} ({self.similarity:.0%} alike{other})"


def find_renamed(path: str, old: Mapping[str, bytes], new: Mapping[str, bytes]) -> Renamed | None:
    """The new file that a file of the old tree became, or None where none is alike enough."""
    before = split_lines(old[path])
    scored: list[tuple[float, str]] = []
    for candidate, data in new.items():
        if candidate in old or _ending(candidate) != _ending(path) or not data:
            continue
        ratio = _compare(before, data)
        # The same name elsewhere is a little evidence of its own.
        bonus = 0.05 if candidate.rpartition("/")[2] == path.rpartition("/")[2] else 0.0
        if ratio >= LIKELY - bonus:
            scored.append((ratio + bonus, candidate))
    if not scored:
        return None
    scored.sort(reverse=True)
    ratio, best = scored[0]
    runner_up = f"{scored[1][1]} ({scored[1][0]:.0%})" if len(scored) > 1 else ""
    return Renamed(best, min(ratio, 1.0), runner_up)


def _compare(before: list[bytes], data: bytes) -> float:
    after = split_lines(data)
    size = min(len(before), len(after)) / max(len(before), len(after), 1)
    if size < _SMALL:
        return 0.0
    matcher = SequenceMatcher(None, before, after, autojunk=False)
    return 0.0 if matcher.quick_ratio() < LIKELY - 0.05 else matcher.ratio()


def _ending(path: str) -> str:
    return path.rpartition("/")[2].rpartition(".")[2]
