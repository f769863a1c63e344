"""The reports of a port, and the commands as they are typed."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from mindspeed_overlay.cli import cli
from mindspeed_overlay.port.engine import run_port
from mindspeed_overlay.port.report import list_problems, render_text
from mindspeed_overlay.port.report_html import render_html
from mindspeed_overlay.port.report_sarif import render_sarif
from unit.port.port_sets import MLP, TAGS, make_job, make_tree, port_file, write_overlay
from unit.port.test_port_session import BASE, CLASH, EDITED, Set


def test_the_page_needs_no_network_and_escapes_what_it_shows(tmp_path: Path) -> None:
    edited = EDITED.replace(b"y = fused(y)", b'y = fused("<script>", y)')
    page = render_html(port_file(tmp_path, BASE, edited, CLASH))
    assert "http" not in page
    assert page.count("<script>") == 1
    assert "&lt;script&gt;" in page
    assert "conflict" in page
    assert "fusions/one" in page


def test_the_sarif_log_has_a_rule_and_a_place_for_each_problem(tmp_path: Path) -> None:
    ported = port_file(tmp_path, BASE, EDITED, CLASH)
    (run,) = json.loads(render_sarif(ported))["runs"]
    rules = {rule["id"] for rule in run["tool"]["driver"]["rules"]}
    assert len(run["results"]) == len(list_problems(ported)) > 0
    for result in run["results"]:
        assert result["ruleId"] in rules
        (location,) = result["locations"]
        assert location["physicalLocation"]["artifactLocation"]["uri"] == MLP
        assert location["physicalLocation"]["region"]["startLine"] > 0
        assert result["properties"] == {
            "overlay": "fusions/one",
            "patch": "megatron.core.mlp.patch",
            "hunk": 1,
        }
        assert "port --continue" in result["message"]["text"]


def test_a_problem_keeps_its_sarif_fingerprint_when_its_lines_move(tmp_path: Path) -> None:
    above = b"# above\n" * 3
    found = []
    for name, extra in (("one", b""), ("two", above)):
        ported = port_file(tmp_path / name, extra + BASE, extra + EDITED, extra + CLASH)
        (result,) = json.loads(render_sarif(ported))["runs"][0]["results"]
        line = result["locations"][0]["physicalLocation"]["region"]["startLine"]
        found.append((line, result["partialFingerprints"]))
    assert found[0][0] + 3 == found[1][0]
    assert found[0][1] == found[1][1]


def test_a_problem_without_a_file_has_a_place_in_its_overlay(tmp_path: Path) -> None:
    """Viewers show nothing of a result that lies nowhere."""
    write_overlay(tmp_path, "fusions/one", {MLP: (BASE, EDITED)})
    trees = {TAGS[0]: make_tree({MLP: BASE}), TAGS[1]: make_tree({})}
    results = json.loads(render_sarif(run_port(make_job(tmp_path, trees))))["runs"][0]["results"]
    uris = [r["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for r in results]
    assert uris == ["overlays/fusions/one/overlay.toml"]


def test_every_problem_names_overlay_patch_hunk_symbol_and_the_next_command(
    tmp_path: Path,
) -> None:
    for problem in list_problems(port_file(tmp_path, BASE, EDITED, CLASH)):
        assert problem.overlay == "fusions/one"
        assert problem.patch == "megatron.core.mlp.patch"
        assert problem.hunk == 1
        assert problem.symbol == "scale"
        assert "port --continue" in problem.hint


def test_the_text_tells_of_what_was_not_exact_only(tmp_path: Path) -> None:
    ported = port_file(tmp_path, BASE, EDITED, BASE)
    lines = list(render_text(ported))
    assert not any(MLP in line for line in lines)
    assert any(MLP in line for line in render_text(ported, details=True))


@pytest.fixture
def made(tmp_path: Path) -> Set:
    made = Set(tmp_path, {MLP: BASE}, {MLP: CLASH})
    write_overlay(made.overlays, "fusions/one", {MLP: (BASE, EDITED)})
    return made


def run(made: Set, *words: str) -> tuple[int, str]:
    command = ["--overlays", str(made.overlays), *words]
    result = CliRunner().invoke(cli, command, standalone_mode=False)
    assert result.exception is None, result.exception
    return result.return_value, result.output


def test_port_and_its_ways_on_from_the_command_line(made: Set, tmp_path: Path) -> None:
    work = ["--work", str(made.work)]
    tags = ["--from", TAGS[0], "--to", TAGS[1], "--source", f"git:{made.upstream}"]
    page, log = tmp_path / "port.html", tmp_path / "port.sarif"
    code, output = run(
        made, "port", *tags, *work, "--json", "--html", str(page), "--sarif", str(log)
    )
    assert code == 5
    assert json.loads(output)["counts"] == {"conflict": 1}
    assert page.read_text().startswith("<!doctype html>")
    assert json.loads(log.read_text())["version"] == "2.1.0"
    code, output = run(made, "port", "--continue", *work)
    assert code == 5
    assert "1 to decide" in output
    assert run(made, "port", "--skip", "fusions/one", *work)[0] == 0
    assert not made.work.exists()


def test_import_and_port_of_a_foreign_patch_from_the_command_line(
    made: Set, tmp_path: Path
) -> None:
    diff = tmp_path / "megatron.patch"
    diff.write_bytes(
        b"--- a/megatron/core/mlp.py\n+++ b/megatron/core/mlp.py\n@@ -11,2 +11,3 @@\n"
        b"     z = x - 1\n+    z = z - 1\n     return z\n"
    )
    source = ["--source", f"git:{made.upstream}"]
    mine = Set.__new__(Set)
    mine.overlays = tmp_path / "mine"
    code, output = run(
        mine, "import", str(diff), "--id", "mine/all", "--from", TAGS[0], *source, "--json"
    )
    assert code == 0
    assert json.loads(output)["patches"] == ["megatron.core.mlp.patch"]
    tags = ["--from", TAGS[0], "--to", TAGS[1]]
    code, _ = run(mine, "port", *tags, *source, "--work", str(tmp_path / "w"))
    assert code == 0
