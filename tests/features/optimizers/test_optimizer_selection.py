"""optimizers/optimizer-selection: fused Adams train as torch's does and go through checkpoints."""

from pathlib import Path
from typing import Any

import pytest
import torch

from harness.compare import assert_near, assert_same
from harness.runner import Named, run_on_cpu, run_on_device
from harness.trees import COMPARED_RELEASES, Trees
from harness.worker import Scenario

SCENARIOS = "features.optimizers.adam_scenarios"
CHOICES = ("fused_adamw", "fused_torch_adamw")
OLD = ("dp_zero_gather_scatter",)  # the others fail to save, see the feature's page
NEW = ("dp_reshardable", "dp_zero_gather_scatter", "fully_reshardable")


def make_tree(trees: Trees, tag: str) -> Path:
    """With what core 0.12 needs for checkpoints with a newer torch."""
    newer_torch = ("base/newer-torch",) if tag == "core_v0.12.1" else ()
    return trees.patched(tag, ("optimizers/optimizer-selection", *newer_torch))


def make_scenario(function: str, **options: Any) -> Scenario:
    return Scenario(f"{SCENARIOS}:{function}", tuple(options.items()))


@pytest.mark.parametrize("tag", COMPARED_RELEASES)
def test_fused_adams_train_as_torchs_does(trees: Trees, tag: str) -> None:
    keys = [(d, dtype) for d in (False, True) for dtype in (torch.float32, torch.bfloat16)]
    choices = (None, *CHOICES)
    scenarios = [
        make_scenario("train", selection=choice, distributed=distributed, dtype=dtype)
        for choice in choices
        for distributed, dtype in keys
    ]
    for found in run_on_device(make_tree(trees, tag), scenarios, world_size=2):
        for start in (len(keys), 2 * len(keys)):
            for (_, dtype), want, new in zip(keys, found, found[start:], strict=False):
                assert_near(new, want, computed_in=dtype)


@pytest.mark.parametrize("tag", COMPARED_RELEASES)
def test_a_fresh_optimizer_resumes_from_every_kind_of_checkpoint(
    trees: Trees, tag: str, tmp_path: Path
) -> None:
    shardings = (*(OLD if tag == "core_v0.12.1" else NEW), "file")
    more: list[dict[str, Any]] = [{"second": CHOICES[1]}]
    if tag != "core_v0.12.1":
        more.append({"reshard": True})
    common: dict[str, Any] = {"folder": str(tmp_path)}
    same = [
        make_scenario("resume", selection=choice, sharding=sharding, **common)
        for choice in (None, *CHOICES)
        for sharding in shardings
    ]
    other = [
        make_scenario("resume", selection=CHOICES[0], sharding=shardings[-2], **common, **change)
        for change in more
    ]
    for found in run_on_device(make_tree(trees, tag), [*same, *other], world_size=2, timeout_s=400):
        for named in found[: len(same)]:
            assert_same({"losses": named["resumed"]}, {"losses": named["went on"]})
        for named in found[len(same) :]:
            torch.testing.assert_close(named["resumed"], named["went on"], rtol=0.01, atol=0.01)


def count(trees: Trees) -> list[Named]:
    scenarios = [make_scenario("count_launches", selection=choice) for choice in (None, *CHOICES)]
    return run_on_device(make_tree(trees, "core_v0.16.1"), scenarios)[0]


def test_a_step_launches_the_fused_operator(trees: Trees) -> None:
    plain, one_by_one, together = count(trees)
    assert int(plain["fused"]) == 0
    assert int(one_by_one["fused"]) == int(one_by_one["parameters"])
    assert 1 <= int(together["fused"]) <= 2  # with weight decay and without
    assert torch.less(together["all"], plain["all"])


@pytest.mark.parametrize("tag", COMPARED_RELEASES)
def test_impossible_configs_are_refused(trees: Trees, tag: str) -> None:
    checks = "features.optimizers.adam_checks"
    names = ("find_unrefused_configs", "choose_beside_another_adam")
    calls: list[tuple[str, tuple[Any, ...]]] = [(f"{checks}:{name}", ()) for name in names]
    unrefused, said = run_on_cpu([make_tree(trees, tag)], *calls)
    assert unrefused == []
    assert said.startswith(
        "--optimizer-selection (optimizer_selection)=fused_adamw: Megatron takes"
    )
