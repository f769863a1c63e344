"""Blame: the origin of every line of a wheel, a folder and an applied tree, and in tracebacks."""

import importlib.util
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import commit_files, make_repository
from mindspeed_overlay.blame import (
    Blamed,
    Origin,
    add_upstream,
    blame_folder,
    blame_wheel,
    find_build_root,
)
from mindspeed_overlay.blame_git import (
    blame_repository,
    blame_upstream,
    find_repository,
    list_commits,
)
from mindspeed_overlay.build import Patched, patch_files
from mindspeed_overlay.data import default_overlays
from mindspeed_overlay.errors import UsageError, VerifyError
from mindspeed_overlay.plan import Plan, Selection, make_plan
from mindspeed_overlay.provenance import trace_lines
from mindspeed_overlay.source import Source
from mindspeed_overlay.verify import verify_wheel
from mindspeed_overlay.wheel import write_wheel
from mindspeed_overlay.wheelname import wheel_name
from mindspeed_overlay.workrepo import write_repository
from unit.overlay_sets import load, make_pins, write_overlay, write_series
from unit.upkeep_sets import MLP, V1, encode, hook, write_patch, write_set

TARGET = "megatron/core/mlp.py"
OWN = "mindspeed/core/help.py"
PATCH = "megatron.core.mlp.patch"


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """`base/one` hooks MLP.forward, and `base/two` the line that it added there."""
    root = write_set(tmp_path / "set")
    write_series(root, "base/one", "base/two")
    once = hook(MLP)
    twice = once.replace("y = half(y)\n", "y = half(y)\n        y = y + 0\n")
    text = write_patch(once, twice, target=TARGET, feature="base/two", blobs={"core_v1": MLP})
    write_overlay(
        root, "base/two", 'requires = ["base/one"]\n', **{f"patches__core_v1__{PATCH}": text}
    )
    pins = make_pins()
    return make_plan(load(root), pins, pins.get("core_v1"), selection=Selection())


@pytest.fixture
def patched(plan: Plan) -> Patched:
    return patch_files(plan, encode(V1))


@pytest.fixture
def wheel(plan: Plan, patched: Patched, tmp_path: Path) -> Path:
    upstream = tmp_path / "upstream.whl"
    with zipfile.ZipFile(upstream, "w") as archive:
        archive.writestr("megatron_core-1.0.dist-info/METADATA", "Version: 1.0\n\nx")
        for name, text in V1.items():
            archive.writestr(name, text)
    source = Source(
        plan.release, "core", encode(V1), upstream, ("py3-none-any",), b"licence", "", (), "5" * 64
    )
    lines = trace_lines(patched.landings)
    data = write_wheel(plan, source, patched.files, touched=patched.touched, lines=lines)
    path = tmp_path / wheel_name(plan, plan.build_digest(source.digest), source.tags)
    path.write_bytes(data)
    return path


def origins(blamed: Blamed) -> dict[str, str]:
    return {o.text.strip(): o.describe() for o in blamed.origins if o.overlay}


HOOKS = {
    "from mindspeed.core.help import half": f"base/one {PATCH} hunk 1",
    "y = half(y)": f"base/one {PATCH} hunk 2",
    "y = y + 0": f"base/two {PATCH} hunk 1",
}


def test_every_line_of_a_wheel_has_its_overlay_patch_and_hunk(wheel: Path) -> None:
    assert verify_wheel(wheel).problems == ()
    blamed = blame_wheel(wheel, TARGET)
    assert origins(blamed) == HOOKS
    rest = [o for o in blamed.origins if not o.overlay]
    assert "".join(f"{o.text}\n" for o in rest) == MLP
    assert {o.upstream for o in rest} == {"core_v1"}
    assert {o.describe() for o in blame_wheel(wheel, OWN).origins} == {"base/one (new file)"}
    untouched = blame_wheel(wheel, "megatron/core/utils.py").origins
    assert {o.upstream for o in untouched} == {"core_v1"}


def test_an_unpacked_wheel_is_found_from_its_files(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    assert find_build_root(site / TARGET) == site
    assert blame_folder(site, TARGET) == blame_wheel(wheel, TARGET)


def test_a_file_that_was_changed_since_is_refused_and_not_guessed(
    wheel: Path, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    (site / TARGET).write_text("\n" + (site / TARGET).read_text())
    with pytest.raises(VerifyError, match="E904"):
        blame_folder(site, TARGET)
    with pytest.raises(UsageError, match="E204"):
        blame_folder(site, "megatron/core/none.py")
    with pytest.raises(VerifyError, match="E903"):
        blame_folder(tmp_path, TARGET)


def test_a_pristine_file_adds_upstreams_line_and_commit(wheel: Path) -> None:
    commits = {number: f"c{number}" for number in range(1, 30)}
    blamed = add_upstream(blame_wheel(wheel, TARGET), MLP.encode(), commits)
    pristine = MLP.splitlines()
    for origin in blamed.origins:
        if origin.overlay:
            assert origin.upstream_line == 0
        else:
            assert pristine[origin.upstream_line - 1] == origin.text
            assert origin.upstream == f"core_v1 c{origin.upstream_line}"


def test_an_applied_tree_tells_the_same_and_marks_later_edits(plan: Plan, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    write_repository(plan, encode(V1), tree)
    assert find_repository(tree / TARGET) == tree
    assert origins(blame_repository(tree, TARGET)) == HOOKS
    text = (tree / TARGET).read_text()
    (tree / TARGET).write_text("# mine\n" + text.replace("        x = x + 0\n", "        x = x\n"))
    blamed = blame_repository(tree, TARGET)
    assert origins(blamed) == HOOKS
    edited = {o.text.strip() for o in blamed.origins if o.upstream.startswith("edited")}
    assert edited == {"# mine", "x = x"}
    assert [o.line for o in blamed.origins] == list(range(1, len(blamed.origins) + 1))
    assert blame_repository(tree, OWN).origins[0].overlay == "base/one"


def test_a_repository_of_somebody_else_is_refused(tmp_path: Path) -> None:
    make_repository(tmp_path / "r", {"a.py": b"x\n"})
    with pytest.raises(UsageError, match="E204"):
        blame_repository(tmp_path / "r", "a.py")


def test_upstreams_commits_come_from_its_history(tmp_path: Path) -> None:
    root = tmp_path / "r"
    first = make_repository(root, {"a.py": b"one\ntwo\n"})
    second = commit_files(root, {"a.py": b"one\n2\n"})
    assert blame_upstream(root, second, "a.py") == {
        1: f"{first[:10]} commit",
        2: f"{second[:10]} commit",
    }
    assert blame_upstream(root, second, "none.py") == {}


def test_the_commits_of_some_lines_leave_out_the_rest(tmp_path: Path) -> None:
    root = tmp_path / "r"
    body = b"def f():\n    return 1\n\n\ndef g():\n    return 1\n"
    first = make_repository(root, {"a.py": body})
    commit_files(root, {"a.py": body.replace(b"f():\n    return 1", b"f():\n    return 2")})
    last = commit_files(root, {"a.py": body.replace(b"return 1", b"return 2")})
    assert len(list_commits(root, first, last, "a.py", (1, 2))) == 1
    (found,) = list_commits(root, first, last, "a.py", (5, 6))
    assert last.startswith(found.split()[0])
    assert list_commits(root, first, "0" * 40, "a.py", (1, 2)) == []


LINES = st.lists(st.sampled_from(["a", "b", "c", "d"]), max_size=8)


@settings(max_examples=100, deadline=None)
@given(LINES, LINES)
def test_upstream_lines_never_pair_with_other_text(before: list[str], after: list[str]) -> None:
    found = tuple(Origin(n, text, upstream="t") for n, text in enumerate(after, 1))
    pristine = "".join(f"{line}\n" for line in before).encode()
    blamed = add_upstream(Blamed("p", "t", found), pristine, {})
    numbers = [o.upstream_line for o in blamed.origins if o.upstream_line]
    assert numbers == sorted(set(numbers))
    assert all(before[o.upstream_line - 1] == o.text for o in blamed.origins if o.upstream_line)


@pytest.fixture
def site(wheel: Path, tmp_path: Path) -> Path:
    """An unpacked wheel with the traceback module in it, as base/ascend brings it."""
    folder = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(folder)
    (folder / "mindspeed" / "__init__.py").write_text("")
    source = default_overlays() / "base/ascend/files/mindspeed/traceback.py"
    (folder / "mindspeed" / "traceback.py").write_bytes(source.read_bytes())
    return folder


def run(site: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(site), "PATH": ""},
    )


SCRIPT = """\
import sys, os
assert sys.argv[1:] == ["--x", "1"] and sys.path[0] == os.path.dirname(os.path.abspath(__file__))
from types import SimpleNamespace
import sys
sys.modules["torch"] = SimpleNamespace(relu=lambda x: "text")
from megatron.core.mlp import MLP
try:
    MLP(4).forward(0)
except TypeError as error:
    raise RuntimeError("outer") from error
"""


def test_a_traceback_names_the_overlays_of_patched_frames(site: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    done = run(site, "-m", "mindspeed.traceback", str(script), "--x", "1")
    assert done.returncode == 1
    assert f"in forward  [base/one, {PATCH}, hunk 2]" in done.stderr
    assert "in half  [base/one, a file of its own]" in done.stderr
    assert "RuntimeError: outer" in done.stderr  # the chained error and the one it caused
    assert "TypeError" in done.stderr
    assert 'train.py", line 8, in <module>\n' in done.stderr  # foreign frames get no remark


def test_a_traceback_without_a_record_is_pythons_own(site: Path, tmp_path: Path) -> None:
    (site / "mindspeed" / "build.json").unlink()
    script = tmp_path / "fail.py"
    script.write_text("def f():\n    1 / 0\nf()\n")
    done = run(site, "-m", "mindspeed.traceback", str(script))
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr
    assert "[" not in done.stderr.replace("[0]", "")
    assert run(site, "-m", "mindspeed.traceback").stderr.startswith("usage:")


@pytest.fixture
def module(site: Path) -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("traceback_here", site / "mindspeed/traceback.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    previous = sys.excepthook
    yield found
    sys.excepthook = previous


def test_the_hook_is_installed_on_request_only_and_never_hides_the_error(
    module: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    previous = sys.excepthook
    module.install()
    assert sys.excepthook is not previous
    monkeypatch.setattr(module, "find_origin", lambda path, line: 1 / 0)
    error = ValueError("seen all the same")
    try:
        raise error
    except ValueError as caught:
        sys.excepthook(type(caught), caught, caught.__traceback__)
    assert "seen all the same" in capsys.readouterr().err
