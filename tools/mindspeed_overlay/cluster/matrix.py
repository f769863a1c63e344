"""The targets of a run: which Pythons and platforms get a wheel."""

import platform as machine
import sys
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindspeed_overlay.errors import Problem, UsageError
from mindspeed_overlay.pins import Wheel


@dataclass(frozen=True)
class Target:
    """A Python and a platform; None means the running one."""

    python: str | None = None
    platform: str | None = None

    def name(self, wheel: Wheel | None) -> tuple[str, str]:
        """Python and platform in words that mean the same on every machine.

        Args:
            wheel: the official wheel that was chosen for it, if one fits.
        """
        python = self.python or f"{sys.version_info[0]}.{sys.version_info[1]}"
        if self.platform or wheel is None:
            return python, self.platform or f"{sys.platform}_{machine.machine()}"
        return python, wheel.tags[-1].split("-")[-1]


def combine_targets(
    pythons: Iterable[str] = (), platforms: Iterable[str] = ()
) -> tuple[Target, ...]:
    """Every Python with every platform; values may be lists with commas."""
    pairs = [(py, name) for py in _split(pythons) for name in _split(platforms)]
    return tuple(Target(*pair) for pair in dict.fromkeys(pairs))


def _split(values: Iterable[str]) -> list[str] | list[None]:
    return [name for value in values for name in value.split(",") if name] or [None]


def read_matrix(path: Path) -> tuple[Target, ...]:
    """The targets of a matrix file: TOML with `python` and `platform` lists, `[[target]]`, or both.

    Raises:
        UsageError: E211, the file is none.
    """
    try:
        table = tomllib.loads(path.read_text("utf-8"))
        targets = _read_table(table)
    except (OSError, ValueError, TypeError, KeyError) as error:
        message = f"{path} is no matrix file: {error}"
        hint = 'it holds python = ["3.10"] and platform = ["linux_aarch64"], or [[target]] tables'
        raise UsageError(
            Problem(code="E211", path=str(path), message=message, hint=hint)
        ) from error
    return targets


def _read_table(table: dict[str, Any]) -> tuple[Target, ...]:
    rows = table.pop("target", [])
    lists = [table.pop(key, []) for key in ("python", "platform")]
    if table:
        raise ValueError(f"unknown key {sorted(table)[0]!r}")
    if not all(isinstance(value, str) for values in lists for value in values):
        raise ValueError("`python` and `platform` are lists of strings")
    targets = list(combine_targets(*lists)) if any(lists) else []
    for row in rows:
        if set(row) != {"python", "platform"} or not all(isinstance(v, str) for v in row.values()):
            raise ValueError("a [[target]] has a `python` and a `platform`")
        targets.append(Target(row["python"], row["platform"]))
    if not targets:
        raise ValueError("it names no target")
    return tuple(dict.fromkeys(targets))
