"""The unit test that MindSpeed's development guide prints for fused_swiglu passes unchanged.

It is other people's and is not copied here: ORIGINAL_VARIABLE says where it is. It needs the full
tree, which PyPI has not, so GIT_VARIABLE must name a Megatron-LM repository as well.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.trees import GIT_VARIABLE, Trees

ORIGINAL_VARIABLE = "MINDSPEED_OVERLAY_ORIGINAL_TEST"
"""Environment: path of the guide's test_npu_swiglu.py."""

TESTS = Path(__file__).parents[1]
MISSING = [name for name in (GIT_VARIABLE, ORIGINAL_VARIABLE) if name not in os.environ]


@pytest.mark.skipif(
    bool(MISSING), reason=f"NOT RUN: the original's unit test needs {' and '.join(MISSING)} set"
)
def test_guide_unit_test_passes_unchanged_with_one_operator_call_a_dtype(
    trees: Trees, tmp_path: Path
) -> None:
    tree = trees.patched("core_v0.12.1", tree="full")
    counts = tmp_path / "counts.json"
    path = [tree, TESTS / "tests_extend", TESTS, TESTS / "system", TESTS.parent / "tools"]
    environment = {
        "PYTHONPATH": os.pathsep.join(map(str, path)),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "COUNT_OPERATOR": "npu_swiglu",
        "COUNT_FILE": str(counts),
    }
    command = [sys.executable, "-m", "pytest", "-p", "ascend_sim.pytest"]
    command += ["-p", "count_operator_calls", "-p", "no:cacheprovider", "-rA"]
    done = subprocess.run(
        [*command, os.environ[ORIGINAL_VARIABLE]],
        env=os.environ | environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "2 passed" in done.stdout.splitlines()[-1]
    assert json.loads(counts.read_text("utf-8")) == {
        "test_npu_swiglu[dtype0]": 1,
        "test_npu_swiglu[dtype1]": 1,
    }
