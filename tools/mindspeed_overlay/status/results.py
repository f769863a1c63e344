"""`test-results.json`: which overlays were tested on which releases, and with which contents.

Written from a JUnit report (`status --record-tests`), where CI keeps it. A cell is `verified` only
while the overlay, and what it requires, still has the digest that was tested, and nothing failed.
"""

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindspeed_overlay.errors import Problem, UsageError

RESULTS = "test-results.json"

_RELEASE = re.compile(r"core_v\d+(?:\.\d+)*")


@dataclass(frozen=True)
class Outcome:
    """The tests of one overlay on one release."""

    digest: str
    passed: int
    failed: int


def read_results(path: Path) -> Mapping[tuple[str, str], Outcome]:
    """(overlay, release) to its tests; empty where there is no file.

    Raises:
        UsageError: E203, the file is something else.
    """
    try:
        table = json.loads(path.read_text("utf-8"))
        return {
            (row["overlay"], row["release"]): Outcome(row["digest"], row["passed"], row["failed"])
            for row in table["results"]
        }
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(_unreadable(path, error)) from error


def _unreadable(path: Path, error: Exception) -> Problem:
    return Problem(code="E203", path=str(path), message=f"cannot read {path}: {error!r}")


def count_tests(report: Path, overlays: Iterable[str]) -> dict[tuple[str, str], tuple[int, int]]:
    """(overlay, release) to (passed, failed), from a JUnit report of tests/features.

    A test belongs to the overlay whose file it stands in (`features/<family>/test_<feature>.py`)
    and to every release in its parameters; skipped tests don't count.

    Raises:
        UsageError: E203, the report cannot be read.
    """
    modules = {f"{i.replace('/', '.test_').replace('-', '_')}": i for i in overlays}
    counts: dict[tuple[str, str], tuple[int, int]] = {}
    try:
        cases = list(ET.parse(report).getroot().iter("testcase"))
    except (OSError, ET.ParseError) as error:
        raise UsageError(_unreadable(report, error)) from error
    for case in cases:
        place = f"{case.get('classname', '')}."
        overlay = next((i for m, i in modules.items() if f".{m}." in f".{place}"), "")
        bad = case.find("failure") is not None or case.find("error") is not None
        if not overlay or case.find("skipped") is not None:
            continue
        for tag in set(_RELEASE.findall(case.get("name", ""))):
            passed, failed = counts.get((overlay, tag), (0, 0))
            counts[overlay, tag] = (passed + (not bad), failed + bad)
    return counts


def describe_results(tested: Mapping[tuple[str, str], Outcome]) -> bytes:
    """The canonical file."""
    rows: list[dict[str, Any]] = [
        {"overlay": o, "release": r, "digest": t.digest, "passed": t.passed, "failed": t.failed}
        for (o, r), t in sorted(tested.items())
    ]
    return (json.dumps({"format": 1, "results": rows}, indent=1) + "\n").encode()
