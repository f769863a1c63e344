"""One thing the gate finds in one module, and the subtraction of what the pristine module had."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault in a module.

    Attributes:
        about: what identifies it besides its code and symbol, free of line numbers, so that the
            same fault is recognised after lines above it were added.
    """

    code: str
    message: str
    about: str
    line: int
    symbol: str

    @property
    def key(self) -> tuple[str, str, str]:
        """Equal for the same fault in two states of a module."""
        return (self.code, self.about, self.symbol)


def subtract(after: Iterable[Finding], before: Iterable[Finding]) -> list[Finding]:
    """What `after` has more of than `before`; of equal findings the later ones count as new."""
    known = Counter(finding.key for finding in before)
    new = []
    for finding in sorted(after, key=lambda f: (f.line, f.code, f.about)):
        known[finding.key] -= 1
        if known[finding.key] < 0:
            new.append(finding)
    return new
