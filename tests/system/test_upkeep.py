"""`status`, `drift`, `blame`, `apply --edit` and `refresh` as a maintainer runs them."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mindspeed_overlay.data import default_overlays

pytestmark = pytest.mark.network

TOOLS = Path(__file__).parents[2] / "tools"
Done = subprocess.CompletedProcess[str]
Tool = Callable[..., Done]
ID = "base/ascend"  # requires nothing and serves every release


@pytest.fixture
def overlays(tmp_path: Path) -> Path:
    """The one overlay, in a set of its own that a test may change."""
    root = tmp_path / "overlays"
    shutil.copytree(default_overlays() / ID, root / ID)
    (root / "series").write_text(f"revision 1\n{ID}\n")
    return root


@pytest.fixture
def tool(overlays: Path, tmp_path: Path) -> Tool:
    def run(*words: str) -> Done:
        env = {**os.environ, "PYTHONPATH": str(TOOLS)}
        command = [sys.executable, "-m", "mindspeed_overlay", "--overlays", str(overlays), *words]
        return subprocess.run(
            command, capture_output=True, text=True, env=env, cwd=tmp_path, check=False
        )

    return run


def test_drift_is_shown_accepted_once_and_then_silent(tool: Tool, overlays: Path) -> None:
    (overlays / ID / "reviewed.toml").unlink(missing_ok=True)
    words = ("drift", "--to", "core_v0.19.0", "--json")
    first = tool(*words)
    assert first.returncode == 6, first.stderr
    report = json.loads(first.stdout)
    assert (report["from"], report["ok"]) == ("core_v0.18.2", False)
    changes = [s for s in report["overlays"][0]["symbols"] if s["kind"] != "same"]
    assert "megatron.core.parallel_state:initialize_model_parallel" in {
        s["symbol"] for s in changes
    }
    shown = tool("drift", "--to", "core_v0.19.0", "--diff").stdout
    assert "+++ core_v0.19.0/megatron/core/parallel_state.py:" in shown
    assert tool("drift", "--accept").returncode == 0
    assert tool("drift").returncode == 0
    assert tool(*words).returncode == 0
    assert tool("check", "--release", "core_v0.19.0", "--offline").returncode == 0


def test_unread_drift_fails_the_check(tool: Tool, overlays: Path) -> None:
    (overlays / ID / "reviewed.toml").unlink(missing_ok=True)
    done = tool("check", "--release", "core_v0.19.0")
    assert done.returncode == 6
    assert "E611" in done.stderr


def test_status_prints_a_matrix_json_and_a_page(tool: Tool, tmp_path: Path) -> None:
    done = tool("status", "--json", "--html", "page.html", "--release", "core_v0.16.1")
    assert done.returncode == 0, done.stderr
    (cell,) = json.loads(done.stdout)["cells"]
    assert (cell["overlay"], cell["release"]) == (ID, "core_v0.16.1")
    assert cell["state"] in ("applies", "ported", "drift")
    assert "0.16.1" in (tmp_path / "page.html").read_text()
    assert "0.16.1" in tool("status", "--release", "core_v0.16.1").stdout


def test_an_edit_comes_back_as_a_patch_that_applies_and_is_canonical(
    tool: Tool, overlays: Path, tmp_path: Path
) -> None:
    assert tool("apply", "work", "--edit", ID, "--release", "core_v0.19.0").returncode == 0
    assert tool("refresh", "--work", "work").stdout == ""
    target = tmp_path / "work/megatron/core/__init__.py"
    text = target.read_text()
    target.write_text(text.replace("prepare_device()\n", "DEVICE_READY = prepare_device()\n", 1))
    done = tool("refresh", "--work", "work")
    assert done.returncode == 0, done.stderr
    assert "megatron.core.__init__.patch" in done.stdout
    assert done.stdout.count("\n") == 1
    assert tool("refresh", "--check").returncode == 0
    line = 1 + target.read_text().splitlines().index("DEVICE_READY = prepare_device()")
    assert tool("apply", "again", "--release", "core_v0.19.0").returncode == 0
    assert (tmp_path / "again/megatron/core/__init__.py").read_text() == target.read_text()
    blamed = tool("blame", f"again/megatron/core/__init__.py:{line}", "--json")
    (found,) = json.loads(blamed.stdout)["lines"]
    assert (found["overlay"], found["patch"]) == (ID, "megatron.core.__init__.patch")


def test_refresh_check_names_a_patch_that_is_out_of_date(tool: Tool, overlays: Path) -> None:
    place = next((overlays / ID / "patches").glob("*/megatron.core.__init__.patch"))
    lines = place.read_text().splitlines(keepends=True)
    at = next(k for k, line in enumerate(lines) if line.startswith("Base-Blob"))
    lines[at] = lines[at][:-5] + "0000\n"
    place.write_text("".join(lines))
    done = tool("refresh", "--check", "--json")
    assert done.returncode == 9
    due = json.loads(done.stdout.partition("error")[0])["due"]
    assert due == [f"{ID}/patches/{place.parent.name}/{place.name}"]
    assert tool("refresh", ID).returncode == 0
    assert tool("refresh", "--check").returncode == 0


@pytest.mark.parametrize(
    "words",
    [
        ("drift", "--from", "core_v0.16.1"),
        ("drift", "--monkey-patches", ".", "--accept"),
        ("refresh",),
        ("refresh", "--check", "--work", "."),
        ("refresh", "--work", "."),
        ("blame", "nothing.py"),
        ("blame", "x.py", "--installed", "--wheel", sys.executable),
        ("apply", "w", "--edit", "base/none"),
        ("apply", "w", "--edit", ID, "--feature", ID),
        ("status", "base/none"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_words(tool: Tool, words: tuple[str, ...]) -> None:
    done = tool(*words)
    assert done.returncode in (2, 4)
    assert "Traceback" not in done.stderr
    assert done.stderr
