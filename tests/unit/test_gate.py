"""What the gate says of a fault, which Python it holds modules to, and what can't disturb it."""

import sys
from pathlib import Path

import pytest

from mindspeed_overlay.errors import MissingError
from mindspeed_overlay.gate import check_gate
from unit.gate_tree import MLP, MODEL, NEW, OVERLAY, SPECS, TREE, UTILS, edit, gate, summary

NESTED_QUOTES = """
def show(names):
    return f"{", ".join(names)}"
"""
MATCH = """
def pick(x):
    match x:
        case [1, *rest]:
            return rest
"""
TYPE_ALIAS = "type Pair[T] = tuple[T, T]\n"
GENERIC = "def first[T](items: list[T]) -> T:\n    return items[0]\n"
EXCEPT_GROUP = "try:\n    pass\nexcept* ValueError:\n    pass\n"
WITH_PARENTHESES = "import io\nwith (io.StringIO() as a, io.StringIO() as b):\n    print(a, b)\n"
UNPACK_IN_INDEX = "def f(a, b):\n    return a[*b]\n"


@pytest.mark.parametrize(
    ("text", "since"),
    [
        (MATCH, "3.10"),
        (WITH_PARENTHESES, "3.9"),
        (EXCEPT_GROUP, "3.11"),
        (UNPACK_IN_INDEX, "3.11"),
        (NESTED_QUOTES, "3.12"),
        (TYPE_ALIAS, "3.12"),
        (GENERIC, "3.12"),
    ],
)
def test_syntax_must_exist_in_the_oldest_python_of_the_release(text: str, since: str) -> None:
    after = edit((NEW, "", text))
    minor = int(since.removeprefix("3."))
    assert gate(after, python=since) == []
    assert gate(after, python="3.13") == []
    if minor > 9:
        problems = gate(after, python=f"3.{minor - 1}")
        assert {(p.code, p.path) for p in problems} == {("E601", NEW)}
        assert since in problems[0].message
        assert f"write it for Python 3.{minor - 1}" in problems[0].hint


def test_syntax_newer_than_the_floor_that_upstream_uses_itself_is_not_ours() -> None:
    before = {**TREE, UTILS: TREE[UTILS] + MATCH.encode()}
    after = {**before, UTILS: b"import math\n\nprint(math.pi)\n" + before[UTILS]}
    touched = {UTILS: (OVERLAY,)}
    assert check_gate(before, after, python="3.9", touched=touched) == []
    twice = {**after, UTILS: after[UTILS] + MATCH.replace("pick", "choose").encode()}
    found = check_gate(before, twice, python="3.9", touched=touched)
    assert summary(found) == [("E601", UTILS, "choose")]


def test_a_problem_names_overlay_place_and_next_command() -> None:
    (problem,) = gate(edit((MLP, "return x * scale + eps", "return npu_scale(x)")))
    line = TREE[MLP][: TREE[MLP].index(b"return x * scale")].count(b"\n") + 1
    assert problem.code == "E602"
    assert problem.overlay == OVERLAY
    assert (problem.path, problem.line, problem.symbol) == (MLP, line, "MLP._scale")
    assert problem.message == f"{MLP}:{line} (in MLP._scale): Undefined name `npu_scale`"
    assert problem.hint.endswith(f"`mindspeed-overlay apply DIR --feature {OVERLAY}`")


def test_a_fault_in_an_untouched_module_is_laid_to_the_overlays_that_caused_it() -> None:
    after = edit(
        (SPECS, "def get_te_spec(num_experts=None, qk", "def get_te_spec(num_experts=None, *, qk"),
        (MLP, "return x * scale + eps", "return x + scale * eps"),
    )
    touched = {SPECS: ("base/hooks", "moe/grouped"), MLP: ("fusions/other",)}
    (problem,) = check_gate(TREE, after, python="3.10", touched=touched)
    assert (problem.path, problem.overlay) == (MODEL, "base/hooks, moe/grouped")
    assert problem.hint.endswith("--feature base/hooks --feature moe/grouped`")


def test_all_problems_of_a_run_come_together_in_order() -> None:
    after = edit(
        (NEW, "", "print(absent)\nfrom megatron.core.nowhere import x\n"),
        (MLP, "import torch\n", ""),
        (MODEL, "get_te_spec(8, True)", "get_te_spec(8, qk=True)"),
    )
    assert summary(gate(after)) == [
        ("E605", MODEL, "build"),
        ("E602", MLP, "Swiglu"),
        ("E602", NEW, "<module>"),
        ("E604", NEW, "<module>"),
    ]


def test_a_module_that_changed_without_being_recorded_is_checked_too() -> None:
    after = edit((MLP, "import torch\n", ""))
    (problem,) = check_gate(TREE, after, python="3.10", touched={})
    assert (problem.code, problem.overlay) == ("E602", "")


def test_a_removed_module_breaks_those_that_import_it() -> None:
    after = {path: data for path, data in TREE.items() if path != SPECS}
    found = check_gate(TREE, after, python="3.10", touched={SPECS: (OVERLAY,)})
    assert [(p.code, p.path, p.overlay) for p in found] == [("E604", MODEL, OVERLAY)] * 2


def test_a_whole_tree_of_new_modules_has_no_pristine_excuse() -> None:
    found = check_gate({}, TREE, python="3.10", touched={})
    assert summary(found) == [("E602", UTILS, "get_te_version")]


def test_bytes_that_python_can_t_read_are_a_syntax_fault() -> None:
    found = gate(edit((NEW, "", "x = 1\n")) | {NEW: b"NAME = '\xe9'\n"})
    assert summary(found) == [("E601", NEW, "<module>")]


@pytest.mark.parametrize("head", [b"# caf\xe9\n", b"# -*- coding: latin-1 -*-\nNAME = '\xe9'\n"])
def test_an_upstream_module_that_is_not_utf8_is_checked_like_others(head: bytes) -> None:
    before = {**TREE, UTILS: head + TREE[UTILS]}
    after = {**before, UTILS: before[UTILS] + b"\nimport math\nprint(math)\n"}
    touched = {UTILS: (OVERLAY,)}
    assert check_gate(before, after, python="3.10", touched=touched) == []
    after[UTILS] += b"print(absent)\n"
    found = check_gate(before, after, python="3.10", touched=touched)
    assert summary(found) == [("E602", UTILS, "<module>")]


def test_the_user_s_ruff_settings_don_t_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ruff.toml").write_text("[lint]\nselect = []\nignore = ['ALL']\n")
    (tmp_path / "pyproject.toml").write_text("[tool.ruff]\nexclude = ['*']\n")
    (tmp_path / ".gitignore").write_text("*\n")
    (tmp_path / ".git").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("RUFF_OUTPUT_FORMAT", "github")
    monkeypatch.setenv("RUFF_OUTPUT_FILE", str(tmp_path / "stolen"))
    monkeypatch.chdir(tmp_path)
    found = gate(edit((NEW, "", "print(absent)\n")))
    assert summary(found) == [("E602", NEW, "<module>")]
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        ".git",
        ".gitignore",
        "pyproject.toml",
        "ruff.toml",
    ]


def test_a_missing_ruff_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    with pytest.raises(MissingError) as caught:
        gate(edit((NEW, "", "x = 1\n")))
    assert caught.value.problems[0].code == "E806"
    assert "pip install ruff" in caught.value.problems[0].hint


def test_a_python_that_ruff_doesn_t_know_is_said() -> None:
    with pytest.raises(MissingError, match="py399"):
        gate(edit((NEW, "", "x = 1\n")), python="3.99")
