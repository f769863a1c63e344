"""The self-verification report: what it says is found anew, and what is not shown is not ok."""

import json
from pathlib import Path

import pytest

from mindspeed_overlay.errors import MissingError
from mindspeed_overlay.evidence import Evidence, find_tests, gather, read_report, run_tests
from mindspeed_overlay.evidence_page import write_page
from unit.test_status import accept_all
from unit.upkeep_sets import survey, write_set

# As feature tests are: a release in the parameters tells what was tested.
TESTS = """\
import pytest

@pytest.mark.parametrize("tag", ["core_v1", "core_v2", "core_v3"])
def test_feature(tag):
    assert tag != {bad!r}

@pytest.mark.skip(reason="needs hardware")
def test_on_hardware():
    pass
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout with an overlay, its tests, its page and a changelog; reviews are up to date."""
    overlays = write_set(tmp_path / "overlays")
    helper = overlays / "base/one/files/mindspeed/core/help.py"
    helper.write_text(helper.read_text().replace(", utils.get_rank", ""))  # gone in core_v3
    accept_all(survey(overlays))
    write_tests(tmp_path, bad="")
    page = tmp_path / "docs" / "features" / "one.md"
    page.parent.mkdir(parents=True)
    page.write_text("# one\n")
    (tmp_path / "docs" / "changelog.md").write_text("- `base/one`\n")
    return tmp_path


def write_tests(root: Path, *, bad: str) -> None:
    path = root / "tests" / "features" / "base" / "test_one.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(TESTS.format(bad=bad))


def collect(root: Path, *, tests: bool = True) -> Evidence:
    made = survey(root / "overlays")
    overlay = made.overlays.get("base/one")
    report = root / "junit.xml"
    if tests:
        run_tests([find_tests(root, overlay)], root=root, report=report)
    return gather(made, overlay, root=root, cache=root / "cache", report=report if tests else None)


def test_a_tested_and_documented_overlay_is_complete(root: Path) -> None:
    evidence = collect(root)
    assert evidence.is_complete
    assert [cell.state for cell in evidence.cells] == ["verified"] * 3
    assert evidence.tests is not None
    assert (evidence.tests.passed, evidence.tests.skipped) == (3, {"needs hardware": 1})
    page = write_page(evidence)
    assert "| tested on every release it claims | ok | verified |" in page
    assert f"`{evidence.digests['core_v2'][:12]}`" in page
    assert "- 1 skipped: needs hardware" in page
    assert json.loads(json.dumps(evidence.to_json()))["ok"] is True


def test_a_failing_test_is_named_and_its_release_is_not_verified(root: Path) -> None:
    write_tests(root, bad="core_v2")
    evidence = collect(root)
    assert not evidence.is_complete
    assert [cell.state == "verified" for cell in evidence.cells] == [True, False, True]
    assert "test_feature[core_v2]" in write_page(evidence)
    assert "| tests pass | NOT SHOWN | 2 passed, 1 failed |" in write_page(evidence)


def test_without_tests_or_pages_nothing_is_claimed(root: Path) -> None:
    (root / "docs" / "features" / "one.md").unlink()
    (root / "docs" / "changelog.md").write_text("")
    evidence = collect(root, tests=False)
    assert [item.good for item in evidence.verdict] == [False, False, False]
    assert "docs/features/one.md" in evidence.verdict[2].found
    assert "Not run." in write_page(evidence)


def test_results_of_other_contents_verify_nothing(root: Path) -> None:
    first = collect(root)
    helper = root / "overlays/base/one/files/mindspeed/core/help.py"
    helper.write_text(helper.read_text() + "\n# another text\n")
    again = collect(root, tests=False)
    assert first.digests != again.digests
    assert [cell.state for cell in again.cells] == ["applies"] * 3


def test_missing_tests_and_a_pytest_that_cannot_start_are_said(root: Path) -> None:
    overlay = survey(root / "overlays").overlays.get("base/one")
    path = find_tests(root, overlay)
    (root / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    with pytest.raises(MissingError, match="E808"):
        run_tests([path], root=root, report=root / "other.xml")
    path.unlink()
    with pytest.raises(MissingError, match="has no tests"):
        find_tests(root, overlay)


def test_a_report_counts_errors_as_failures(tmp_path: Path) -> None:
    report = tmp_path / "r.xml"
    report.write_text(
        '<testsuites><testsuite><testcase classname="a" name="b" time="1.25"><error/></testcase>'
        '<testcase classname="a" name="c" time="0.5"/></testsuite></testsuites>'
    )
    tests = read_report(report)
    assert (tests.passed, tests.failed, tests.seconds) == (1, ("a::b",), 1.8)
