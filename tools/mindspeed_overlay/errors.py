"""What can go wrong, as values: problems with stable codes, raised together.

Codes: E2xx usage, E3xx pins and sources, E4xx overlay definitions, E5xx patches that do not apply,
E6xx the gate, E7xx packaging, E8xx a missing program or network, E9xx verification.
"""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One failure: what, where, and the next command to type."""

    code: str
    message: str
    overlay: str = ""
    patch: str = ""
    hunk: int = 0
    path: str = ""
    line: int = 0
    symbol: str = ""
    hint: str = ""

    def to_json(self) -> dict[str, Any]:
        """The fields that are set, for machines."""
        return {key: value for key, value in asdict(self).items() if value}

    def __str__(self) -> str:
        where = f" {self.overlay}:" if self.overlay else ""
        hint = f"\n  hint: {self.hint}" if self.hint else ""
        return f"error[{self.code}]{where} {self.message}{hint}"


class OverlayError(Exception):
    """One or more problems that ended a command. Each family has its own exit code."""

    exit_code = 1

    def __init__(self, *problems: Problem) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


class UsageError(OverlayError):
    """The command line asks for something that cannot be."""

    exit_code = 2


class SourceError(OverlayError):
    """A pin, or the bytes of a release, are not what they must be."""

    exit_code = 3


class DefinitionError(OverlayError):
    """An overlay, the series or a selection is wrong in itself."""

    exit_code = 4


class ApplyError(OverlayError):
    """A patch does not fit the release."""

    exit_code = 5


class GateError(OverlayError):
    """The patches apply, and the result is still wrong."""

    exit_code = 6


class PackagingError(OverlayError):
    """The wheel cannot be written."""

    exit_code = 7


class MissingError(OverlayError):
    """A program or the network is missing."""

    exit_code = 8


class VerifyError(OverlayError):
    """A wheel or an installation is not what its records say."""

    exit_code = 9
