"""Upstream's commits behind what a port found: absorbed, dropped, gone, and in conflict."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from mindspeed_overlay.cli import cli
from mindspeed_overlay.port.report import render_text, to_json
from mindspeed_overlay.source.transport import run_git
from unit.port.port_sets import MLP, TAGS, text, write_overlay
from unit.port.test_port_session import BASE, CLASH, EDITED, HOOK, OTHER, Set

IDENTITY = ["-c", "user.name=Upstream", "-c", "user.email=up@localhost"]
ADDED = BASE.replace(b"    return y\n", b"    y = y + 5 * 7\n    return y\n")


def build(root: Path, before: dict[str, bytes], *commits: tuple[str, dict[str, bytes]]) -> Set:
    """An upstream with one commit after another between two tags; empty contents remove."""
    made = Set(root, before)
    for subject, files in commits:
        for path, data in files.items():
            (made.upstream / path).write_bytes(data)
            if not data:
                (made.upstream / path).unlink()
        run_git(made.upstream, ["add", "-A"])
        run_git(made.upstream, [*IDENTITY, "commit", "-q", "-m", subject])
    run_git(made.upstream, ["tag", TAGS[1]])
    return made


OLD_CLASS = text("""


    class Old:
        def run(self):
            return 1
""")


@pytest.mark.parametrize(
    ("before", "after", "states", "outcome", "subject"),
    [
        (BASE, ADDED, [ADDED, b"# x\n" + ADDED], "absorbed", "step 0"),
        (BASE, ADDED, [b"# x\n" + BASE, ADDED], "absorbed", "step 1"),
        (
            BASE + OLD_CLASS,
            BASE + OLD_CLASS.replace(b"return 1", b"return 2"),
            [b"# x\n" + BASE + OLD_CLASS, BASE],
            "dropped",
            "step 1",
        ),
        (BASE, EDITED, [b"# x\n" + BASE, b""], "dropped", "step 1"),
        (BASE, EDITED, [CLASH, b"# x\n" + CLASH], "conflict", "step 0"),
    ],
)
def test_an_outcome_names_the_commit_that_made_it_so(
    tmp_path: Path, before: bytes, after: bytes, states: list[bytes], outcome: str, subject: str
) -> None:
    steps = [(f"step {n}", {MLP: data}) for n, data in enumerate(states)]
    made = build(tmp_path, {MLP: before}, *steps)
    write_overlay(made.overlays, "fusions/one", {MLP: (before, after)})
    ported = made.start(dry_run=True).ported
    (patch,) = ported.patches
    assert patch.outcome == outcome
    (piece,) = [p for p in patch.pieces if p.outcome == outcome]
    assert piece.since == TAGS[1]
    assert [commit.subject for commit in piece.commits] == [subject]
    assert any(f"{subject} (Upstream" in line for line in render_text(ported))
    assert to_json(ported)["overlays"][0]["patches"][0]["hunks"][-1]["commits"]


def test_a_target_gone_with_traces_left_names_the_commit_that_removed_it(tmp_path: Path) -> None:
    user = b"from megatron.core import mlp\n"
    steps = ("use it", {OTHER: user}), ("remove it", {MLP: b""})
    made = build(tmp_path, {MLP: BASE}, *steps)
    write_overlay(made.overlays, "fusions/one", {MLP: (BASE, EDITED)})
    (patch,) = made.start(dry_run=True).ported.patches
    assert patch.outcome == "gone"
    assert any("remove it (Upstream" in note for note in patch.notes)


def test_from_and_to_take_any_commit_of_a_git_source(tmp_path: Path) -> None:
    """Neither a tag nor a pinned release: abbreviated hashes, a branch, HEAD~1."""
    moved = b"# x\n" + BASE.replace(b"    y = x * 2\n", b"    y = 2 * x\n")
    made = build(tmp_path, {MLP: BASE}, ("one", {MLP: b"# x\n" + BASE}), ("two", {MLP: moved}))
    first = run_git(made.upstream, ["rev-parse", "--short", "HEAD~2"]).decode().strip()
    write_overlay(made.overlays, "fusions/one", {MLP: (BASE, EDITED)}, tag=first)
    for last in ("HEAD~1", "main"):
        outcome = made.start(first=first, last=last, dry_run=True)
        assert outcome.exit_code == 0
        (patch,) = outcome.ported.patches
        assert HOOK in patch.after
        assert patch.base_tag == last


def test_drift_takes_any_commit_of_a_git_source_too(tmp_path: Path) -> None:
    changed = BASE.replace(b"    y = x * 2\n", b"    y = 2 * x\n")
    made = build(tmp_path, {MLP: BASE}, ("one", {MLP: b"# x\n" + BASE}), ("two", {MLP: changed}))
    write_overlay(made.overlays, "fusions/one", {MLP: (BASE, EDITED)})
    for last, kind in (("HEAD~1", "same"), ("HEAD", "body changed")):
        words = ["--overlays", str(made.overlays), "drift", "--from", TAGS[0], "--to", last]
        words += ["--source", f"git:{made.upstream}", "--json"]
        output = CliRunner().invoke(cli, words, standalone_mode=False).stdout
        (overlay,) = json.loads(output)["overlays"]
        kinds = {symbol["symbol"]: symbol["kind"] for symbol in overlay["symbols"]}
        assert kinds["megatron.core.mlp:scale"] == kind
