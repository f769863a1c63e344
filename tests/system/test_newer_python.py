"""Core 0.17 and later ask for Python 3.12: where one with torch is, they are tested there too.

On Python 3.11 these releases run when put on the path, as the other tests do. The interpreter is
$MINDSPEED_OVERLAY_TEST_PYTHON, or `python3.12` with torch, torch_npu, pytest and hypothesis.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VARIABLE = "MINDSPEED_OVERLAY_TEST_PYTHON"
NEEDED = "import sys, torch, pytest, hypothesis, importlib.metadata as m; m.version('torch-npu')"


def find_newer_python() -> str:
    """A Python of 3.12 or later that can run the tests, or an empty string."""
    for candidate in (os.environ.get(VARIABLE, ""), shutil.which("python3.12") or ""):
        probe = [candidate, "-c", f"{NEEDED}; assert sys.version_info >= (3, 12)"]
        environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
        try:
            done = subprocess.run(probe, env=environment, capture_output=True, check=False)
        except OSError:
            continue
        if candidate and done.returncode == 0:
            return candidate
    return ""


def test_releases_that_ask_for_python_312_pass_there() -> None:
    if sys.version_info >= (3, 12):
        pytest.skip("this run is on Python 3.12 or later itself")
    python = find_newer_python()
    if not python:
        pytest.skip(f"NO PYTHON 3.12 WITH TORCH: 0.17 and later ran on 3.11 only; set {VARIABLE}")
    words = ["-m", "pytest", "-q", "tests/features", "-k", "core_v0.17.1 or core_v0.19.0"]
    done = subprocess.run(
        [python, *words], cwd=ROOT, capture_output=True, text=True, timeout=1500, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:]
