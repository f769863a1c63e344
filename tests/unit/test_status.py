"""Status: each state, its reason, what makes it stale, and that nothing is verified by hope."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from mindspeed_overlay.drift.reviewed import Reviewed, write_reviewed
from mindspeed_overlay.drift.survey import Survey
from mindspeed_overlay.errors import UsageError
from mindspeed_overlay.plan import Selection, make_plan
from mindspeed_overlay.status.cell import Cell, Matrix, read_cell
from mindspeed_overlay.status.matrix import StatusFinder, digest_of
from mindspeed_overlay.status.page import write_page
from mindspeed_overlay.status.record import record_tests
from mindspeed_overlay.status.results import Outcome, count_tests, read_results
from unit.overlay_sets import TAGS, make_pins
from unit.upkeep_sets import MLP, RELEASES, V1, hook, survey, write_patch, write_set

TARGET = "megatron/core/mlp.py"


def accept_all(made: Survey) -> None:
    overlay = made.overlays.get("base/one")
    reviewed = Reviewed({})
    for tag in TAGS:
        uses = made.look(overlay, made.pins.get(tag)).uses
        states = [(use.symbol, made.symbols(tag).state_of(use)) for use in uses]
        reviewed = reviewed.with_states(tag, [(s, x) for s, x in states if x], TAGS)
    write_reviewed(overlay.folder, reviewed)


def find(
    made: Survey, cache: Path, tested: Mapping[tuple[str, str], Outcome] | None = None
) -> dict[str, Cell]:
    finder = StatusFinder(made, cache, tested or {})
    matrix = finder.find_matrix(made.overlays.overlays, made.pins.releases)
    return {tag: matrix.cells["base/one", tag] for tag in TAGS}


def states(cells: Mapping[str, Cell]) -> list[str]:
    return [cells[tag].state for tag in TAGS]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = write_set(tmp_path / "overlays")
    helper = folder / "base/one/files/mindspeed/core/help.py"
    helper.write_text(helper.read_text().replace(", utils.get_rank", ""))  # gone in core_v3
    return folder


def test_unread_drift_shows_until_it_is_accepted(root: Path, tmp_path: Path) -> None:
    made = survey(root)
    cells = find(made, tmp_path / "cache")
    assert states(cells) == ["drift"] * 3
    assert any("MLP.forward" in line for line in cells["core_v3"].details)
    accept_all(made)
    assert states(find(made, tmp_path / "cache")) == ["applies"] * 3


def write_form(root: Path, since: str, text: str, after: str) -> None:
    folder = root / "base/one/patches" / since
    folder.mkdir(exist_ok=True)
    patch = write_patch(text, after, target=TARGET, feature="base/one")
    (folder / "megatron.core.mlp.patch").write_text(patch)


def test_a_form_that_does_not_apply_is_a_conflict_and_a_newer_one_ported(
    root: Path, tmp_path: Path
) -> None:
    text = MLP.replace("        y = torch.relu(x)\n        return y", "        return x")
    releases = {**RELEASES, "core_v2": {**V1, TARGET: text}, "core_v3": {**V1, TARGET: text}}
    cell = find(survey(root, releases), tmp_path / "cache")["core_v2"]
    assert cell.state == "conflict"
    assert "does not apply" in cell.reason
    assert any("E502" in line for line in cell.details)
    after = text.replace("        return x", "        x = half(x)\n        return x")
    write_form(root, "core_v2", text, after)
    cell = find(survey(root, releases), tmp_path / "cache")["core_v2"]
    assert cell.state == "conflict"  # nothing imports half
    assert "gate" in cell.reason
    assert any("E602" in line for line in cell.details)
    after = after.replace("import torch\n", "import torch\nfrom mindspeed.core.help import half\n")
    write_form(root, "core_v2", text, after)
    made = survey(root, releases)
    accept_all(made)
    cells = find(made, tmp_path / "cache")
    assert states(cells) == ["applies", "ported", "ported"]
    assert cells["core_v3"].since == "core_v2"


def test_what_upstream_has_already_is_absorbed(root: Path, tmp_path: Path) -> None:
    made = survey(root, {**RELEASES, "core_v3": {**V1, TARGET: hook(MLP)}})
    cell = find(made, tmp_path / "cache")["core_v3"]
    assert cell.state == "absorbed"


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ("Merged, in core_v3", "absorbed"),
        ("absorbed since core_v3", "absorbed"),
        ("Pending", "not claimed"),
    ],
)
def test_a_release_that_is_left_out_says_why(
    root: Path, tmp_path: Path, status: str, state: str
) -> None:
    (root / "base/one/overlay.toml").write_text(
        'id = "base/one"\nsummary = "s"\nlevel = 0\nreleases = "<core_v3"\n'
        f'upstream-status = "{status}"\n'
    )
    assert find(survey(root), tmp_path / "cache")["core_v3"].state == state


def test_a_warm_run_opens_no_release_and_any_change_makes_it_look_again(
    root: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    accept_all(survey(root))
    first = find(survey(root), cache)
    blind = survey(root)
    blind.opened.clear()  # opening one would ask PyPI for a release that is not there
    assert find(blind, cache) == first
    place = root / "base/one/reviewed.toml"
    place.write_text(re.sub(r'(:divide" = \[\n)(?:  .*\n)+', r"\1", place.read_text()))
    assert states(find(survey(root), cache)) == ["drift"] * 3


def outcome(made: Survey, tag: str, *, failed: int = 0, digest: str = "") -> Outcome:
    chosen = Selection(features=("base/one",))
    plan = make_plan(made.overlays, make_pins(), make_pins().get(tag), selection=chosen)
    return Outcome(digest or digest_of(plan), 5, failed)


def test_verified_needs_passing_tests_of_exactly_these_contents(root: Path, tmp_path: Path) -> None:
    made = survey(root)
    accept_all(made)
    results = {
        ("base/one", "core_v1"): outcome(made, "core_v1"),
        ("base/one", "core_v2"): outcome(made, "core_v2", failed=1),
        ("base/one", "core_v3"): outcome(made, "core_v3", digest="0" * 64),
    }
    cells = find(made, tmp_path / "cache", results)
    assert states(cells) == ["verified", "applies", "applies"]
    assert "1 failed" in cells["core_v2"].details[-1]
    assert "other contents" in cells["core_v3"].details[-1]
    helper = root / "base/one/files/mindspeed/core/help.py"
    helper.write_text(helper.read_text() + "\n\nX = 1\n")
    assert states(find(survey(root), tmp_path / "cache", results))[0] == "applies"


REPORT = """<testsuites><testsuite>
<testcase classname="tests.features.base.test_one" name="test_a[core_v1]"/>
<testcase classname="tests.features.base.test_one" name="test_b[core_v1-x]"/>
<testcase classname="tests.features.base.test_one" name="test_b[core_v2-x]"><failure/></testcase>
<testcase classname="tests.features.base.test_one" name="test_c[core_v3]"><skipped/></testcase>
<testcase classname="tests.features.base.test_oneself" name="test_d[core_v3]"/>
<testcase classname="tests.features.base.test_one" name="test_e"/>
</testsuite></testsuites>"""


def test_a_junit_report_is_counted_by_overlay_and_release(root: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    counts = {("base/one", "core_v1"): (2, 0), ("base/one", "core_v2"): (0, 1)}
    assert count_tests(report, ["base/one"]) == counts
    results = tmp_path / "test-results.json"
    made = survey(root)
    record_tests(made, report, results)
    found = read_results(results)
    assert {key: (t.passed, t.failed) for key, t in found.items()} == counts
    accept_all(made)
    assert states(find(made, tmp_path / "cache", found)) == ["verified", "applies", "applies"]


def test_unreadable_results_are_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text("[]")
    with pytest.raises(UsageError, match="E203"):
        read_results(tmp_path / "r.json")
    with pytest.raises(UsageError, match="E203"):
        count_tests(tmp_path / "r.json", [])


def test_the_page_is_self_contained_and_shows_every_reason() -> None:
    cell = Cell("base/<one>", "core_v1", "conflict", "a & b", ("line <1>",), "core_v1")
    other = Cell("base/<one>", "core_v2", "not claimed", "releases: <core_v2")
    cells = {("base/<one>", "core_v1"): cell, ("base/<one>", "core_v2"): other}
    matrix = Matrix((("base/<one>", 'say "so"'),), ("core_v1", "core_v2"), cells)
    page = write_page(matrix, title="T").decode()
    assert not re.search(r"https?:|src=|<link|@import|url\(", page)
    assert "a &amp; b\nline &lt;1&gt;" in page
    assert "base/&lt;one&gt;" in page
    assert page.count("<details>") == 2
    assert 'class="not-claimed"' in page
    assert write_page(matrix, title="T").decode() == page


def test_a_cell_reads_back_from_its_json() -> None:
    cell = Cell("a/b", "core_v1", "drift", "r", ("x", "y"), "core_v1")
    assert read_cell(cell.to_json()) == cell
