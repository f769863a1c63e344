"""The torch_npu that overlays state is compared where training starts, and by `doctor`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.runner import run_on_cpu
from harness.trees import Trees

BUILD = {
    "overlays": [
        {"id": "base/ascend", "torch_npu": ">=2.7.1"},
        {"id": "context-parallel/core", "torch_npu": ">=2.13.0"},
        {"id": "base/options", "torch_npu": ""},
    ]
}


def judge(version: str) -> None:
    """Runs in a tree: the check with a version of ours."""
    from mindspeed.core.floors import check_torch_npu

    check_torch_npu(BUILD, installed=version)


@pytest.mark.parametrize("version", ["2.13.0", "2.13.0.post3", "2.14", "3.0.0rc1", ""])
def test_a_torch_npu_that_is_new_enough_passes(trees: Trees, version: str) -> None:
    tree = trees.patched("core_v0.16.1", ("base/ascend",))
    tests = Path(__file__).parents[2]
    run_on_cpu([tree, tests], ("features.base.test_floors:judge", (version,)))


def test_an_older_one_is_refused_with_the_overlay_and_its_floor(trees: Trees) -> None:
    tree = trees.patched("core_v0.16.1", ("base/ascend",))
    tests = Path(__file__).parents[2]
    with pytest.raises(Exception, match=r"2\.9\.0 is too old") as caught:
        run_on_cpu([tree, tests], ("features.base.test_floors:judge", ("2.9.0",)))
    assert "context-parallel/core needs torch_npu >=2.13.0" in str(caught.value)
    assert "base/ascend needs" not in str(caught.value)


def test_doctor_compares_the_installed_one() -> None:
    tools = Path(__file__).parents[3] / "tools"
    command = [sys.executable, "-m", "mindspeed_overlay", "doctor", "--json"]
    environment = {**os.environ, "PYTHONPATH": str(tools)}
    done = subprocess.run(command, capture_output=True, env=environment, check=False)
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    assert rows["torch-npu of overlays"]["state"] == "ok"
