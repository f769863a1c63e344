"""An unmodified Megatron GPTModel trains on the simulated device as it does on the CPU."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from harness.runner import run_on_device
from harness.trees import COMPARED_RELEASES, Trees
from harness.worker import Scenario

SCRIPT = Path(__file__).with_name("gpt_training.py")
ROOT = Path(__file__).parents[2]


def start(
    tree: Path, device: str, store: Path, options: Mapping[str, object] = MappingProxyType({})
) -> "subprocess.Popen[str]":
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "tools"), str(ROOT / "tests")]),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-W", "ignore", str(SCRIPT), str(tree), device, str(store)]
    command.append(json.dumps(dict(options)))
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True)


def read_losses(process: "subprocess.Popen[str]") -> list[float]:
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors[-4000:]
    losses: list[float] = json.loads(output.splitlines()[-1])
    return losses


@pytest.mark.parametrize("release", COMPARED_RELEASES)
def test_five_adamw_steps_equal_the_cpu(release: str, trees: Trees, tmp_path: Path) -> None:
    tree = trees.pristine(release)
    host, device = (start(tree, d, tmp_path / d) for d in ("cpu", "npu"))
    expected, found = read_losses(host), read_losses(device)
    assert len(expected) == 5
    assert expected[-1] < expected[0] - 0.5
    assert found == pytest.approx(expected, rel=2e-6)


LAYOUTS = {
    "one rank": (1, {}, False),
    "TP 2": (2, {"tensor_model_parallel_size": 2}, False),
    "TP 2 x DP 2, distributed optimizer": (4, {"tensor_model_parallel_size": 2}, True),
}


@pytest.mark.parametrize("release", COMPARED_RELEASES)
def test_sharded_training_with_megatrons_optimizer_equals_the_cpu(
    release: str, trees: Trees, tmp_path: Path
) -> None:
    expected = read_losses(start(trees.pristine(release), "cpu", tmp_path / "cpu"))
    # Upstream's optimizer for sharded states knows no NPU: the overlay makes it read the types.
    tree = trees.patched(release, ("base/optimizers",))
    for name, (world_size, sizes, distributed_optimizer) in LAYOUTS.items():
        options = (("distributed_optimizer", distributed_optimizer),)
        scenario = Scenario("sim.parallel_training:train", options)
        ranks = run_on_device(tree, [scenario], world_size=world_size, sizes=sizes)
        for (answer,) in ranks:
            assert answer["losses"].tolist() == pytest.approx(expected, rel=5e-6), name


def test_full_recomputation_repeats_the_dropout_of_the_device(trees: Trees, tmp_path: Path) -> None:
    tree = trees.pristine("core_v0.16.1")
    dropout = {"hidden_dropout": 0.2, "attention_dropout": 0.2}
    recompute = {"recompute_granularity": "full", "recompute_method": "uniform"}
    plain = start(tree, "npu", tmp_path / "plain", dropout)
    recomputed = start(
        tree, "npu", tmp_path / "recomputed", dropout | recompute | {"recompute_num_layers": 1}
    )
    expected, found = read_losses(plain), read_losses(recomputed)
    assert found == pytest.approx(expected, rel=1e-6)
    assert expected[-1] < expected[0]
