"""The self-verification report of a contribution: what an overlay is, and what shows it.

Nothing here is taken from what somebody said: states come from applying and the gate, tests from a
run of them (or from the report of one), the rest from the files.
"""

import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mindspeed_overlay.doctor import examine
from mindspeed_overlay.drift.survey import Survey
from mindspeed_overlay.errors import MissingError, Problem
from mindspeed_overlay.overlay import Overlay
from mindspeed_overlay.patch import parse_patch
from mindspeed_overlay.plan import Selection, make_plan
from mindspeed_overlay.status.cell import Cell
from mindspeed_overlay.status.matrix import StatusFinder
from mindspeed_overlay.status.record import record_tests
from mindspeed_overlay.status.results import read_results

GOOD_STATES = ("verified", "native", "not claimed")
_ENVIRONMENT = ("Python", "torch", "torch-npu", "devices")


@dataclass(frozen=True)
class Patched:
    """What one set of patches edits: changed lines by upstream file."""

    since: str
    lines: dict[str, int]


@dataclass(frozen=True)
class Tests:
    """A test run. `failed` are names; `skipped` are reasons with their number."""

    passed: int
    failed: tuple[str, ...]
    skipped: dict[str, int]
    seconds: float


@dataclass(frozen=True)
class Item:
    """One line of the verdict."""

    what: str
    good: bool
    found: str


@dataclass(frozen=True)
class Evidence:
    """The report of one overlay."""

    overlay: Overlay
    digests: dict[str, str]
    """By release: of the overlay and all it requires, as planned there."""
    patched: tuple[Patched, ...]
    cells: tuple[Cell, ...]
    tests: Tests | None
    pages: dict[str, bool]
    environment: dict[str, str]

    @property
    def verdict(self) -> tuple[Item, ...]:
        """What a reviewer asks first, each with an answer."""
        bad = [f"{c.release} {c.state}" for c in self.cells if c.state not in GOOD_STATES]
        missing = [path for path, there in self.pages.items() if not there]
        tests = self.tests
        ran = f"{tests.passed} passed, {len(tests.failed)} failed" if tests else "not run"
        return (
            Item("tested on every release it claims", not bad, ", ".join(bad) or "verified"),
            Item("tests pass", bool(tests and tests.passed and not tests.failed), ran),
            Item("documented", not missing, f"no {', '.join(missing)}" if missing else "yes"),
        )

    @property
    def is_complete(self) -> bool:
        """Whether every item of the verdict is good."""
        return all(item.good for item in self.verdict)

    def to_json(self) -> dict[str, Any]:
        """For machines."""
        return {
            "overlay": self.overlay.id,
            "ok": self.is_complete,
            "verdict": [asdict(item) for item in self.verdict],
            "digests": self.digests,
            "patches": [asdict(patched) for patched in self.patched],
            "cells": [cell.to_json() for cell in self.cells],
            "tests": asdict(self.tests) if self.tests else None,
            "pages": self.pages,
            "environment": self.environment,
        }


def gather(
    survey: Survey, overlay: Overlay, *, root: Path, cache: Path, report: Path | None
) -> Evidence:
    """Collect the report of one overlay.

    Args:
        survey: the overlay set, pins and source.
        overlay: the one to report on.
        root: the checkout with `tests` and `docs`.
        cache: where states of unchanged overlays are kept.
        report: a JUnit report of the overlay's tests; None leaves them out.
    """
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.json"
        if report is not None:
            record_tests(survey, report, results)
        finder = StatusFinder(survey, cache, read_results(results))
        releases = [r for r in survey.pins.releases if overlay.serves(r.tag, survey.order)]
        matrix = finder.find_matrix([overlay], releases)
    return Evidence(
        overlay=overlay,
        digests={r.tag: _digest(survey, overlay, r.tag) for r in releases},
        patched=tuple(_count_lines(overlay)),
        cells=tuple(matrix.cells.values()),
        tests=read_report(report) if report is not None else None,
        pages=find_pages(root, overlay),
        environment={f.name: f.found for f in examine() if f.name in _ENVIRONMENT},
    )


def _digest(survey: Survey, overlay: Overlay, tag: str) -> str:
    release, selection = survey.pins.get(tag), Selection(features=(overlay.id,))
    plan = make_plan(survey.overlays, survey.pins, release, selection=selection, tree=survey.tree)
    return str(plan.overlay_digest(overlay.id))


def _count_lines(overlay: Overlay) -> list[Patched]:
    found = []
    for since, patches in sorted(overlay.patch_sets.items()):
        lines = {}
        for name, data in patches.items():
            patch = parse_patch(data, name=name)
            changed = [line for hunk in patch.hunks for line in hunk.lines if line[:1] in b"+-"]
            lines[patch.target] = len(changed)
        found.append(Patched(since, lines))
    return found


def find_pages(root: Path, overlay: Overlay) -> dict[str, bool]:
    """The documentation that an overlay owes, and whether it is there."""
    page = Path("docs", "features", f"{overlay.id.partition('/')[2]}.md")
    if overlay.family == "base":
        # What features stand on may have a page of its own instead.
        other = Path("docs", page.name)
        page = other if (root / other).is_file() else page
    log = root / "docs" / "changelog.md"
    named = log.is_file() and overlay.id in log.read_text("utf-8")
    return {page.as_posix(): (root / page).is_file(), "a line in docs/changelog.md": named}


def find_tests(root: Path, overlay: Overlay) -> Path:
    """The file of an overlay's tests.

    Raises:
        MissingError: E808, there is none.
    """
    family, _, feature = overlay.id.replace("-", "_").partition("/")
    path = root / "tests" / "features" / family / f"test_{feature}.py"
    if not path.is_file():
        message = f"has no tests at {path}"
        hint = "run the tool in a checkout, or give their report with --junit"
        raise MissingError(Problem(code="E808", overlay=overlay.id, message=message, hint=hint))
    return path


def run_tests(tests: Sequence[Path], *, root: Path, report: Path) -> None:
    """Run tests in a process of their own and write a JUnit report; failing ones are no error.

    Raises:
        MissingError: E808, pytest is not there or could not start.
    """
    command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *map(str, tests)]
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, check=False
    )
    if not report.is_file():
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        message = f"the tests could not be run: {' '.join(last)}"
        hint = "pip install 'mindspeed-overlay[test,sim]'"
        raise MissingError(Problem(code="E808", message=message, hint=hint))


def read_report(report: Path) -> Tests:
    """The counts of a JUnit report, whatever its tests belong to."""
    passed, failed, seconds = 0, [], 0.0
    skipped: dict[str, int] = {}
    for case in ET.parse(report).getroot().iter("testcase"):
        seconds += float(case.get("time", 0))
        skip = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(f"{case.get('classname', '')}::{case.get('name', '')}")
        elif skip is not None:
            reason = skip.get("message", "")
            skipped[reason] = skipped.get(reason, 0) + 1
        else:
            passed += 1
    return Tests(passed, tuple(failed), skipped, round(seconds, 1))
