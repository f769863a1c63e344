"""base/communication: HCCL's group options, doubles, and deterministic mode."""

import ast
from pathlib import Path

import pytest

from ascend_sim.ranks import RankError
from features.base.communication_checks import expect_doubles
from harness.compare import assert_same
from harness.runner import run_on_cpu, run_on_device
from harness.trees import ALL_RELEASES, COMPARED_RELEASES, Trees
from harness.worker import Scenario

CHECKS = "features.base.communication_checks"
OVERLAYS = ("base/communication",)
NEWEST = "core_v0.19.0"
WITH_TRAINING = ALL_RELEASES[4:]  # PyPI's trees hold megatron.training from core 0.17 on
REFUSED = {
    "set_foreign_options": r"max_ctas, net_name for the group dp: HCCL has no such settings",
    "contradict_determinism": r"HCCL_DETERMINISTIC=false contradicts deterministic_mode",
}


def scenario(name: str) -> Scenario:
    return Scenario(f"{CHECKS}:{name}")


def test_doubles_are_reduced_exactly_without_hccls_all_reduce(trees: Trees) -> None:
    tree = trees.patched(NEWEST, OVERLAYS)
    for (answer,) in run_on_device(tree, [scenario("reduce_doubles")], world_size=2):
        assert_same(answer, expect_doubles())


@pytest.mark.parametrize("tag", COMPARED_RELEASES)
def test_groups_take_the_options_that_hccl_has(tag: str, trees: Trees) -> None:
    ((answer,),) = run_on_device(trees.patched(tag, OVERLAYS), [scenario("make_groups")])
    assert answer["priorities"].tolist() == [True, False, True]
    assert answer["reduced"].tolist() == [1.0, 1.0]


def test_upstream_raises_for_any_group_option(trees: Trees) -> None:
    with pytest.raises(RankError, match="is_high_priority_stream"):
        run_on_device(trees.pristine(NEWEST), [scenario("make_groups")])


@pytest.mark.parametrize("name", REFUSED)
def test_what_hccl_cannot_do_is_refused(name: str, trees: Trees) -> None:
    with pytest.raises(RankError, match=REFUSED[name]):
        run_on_device(trees.patched(NEWEST, OVERLAYS), [scenario(name)])


def test_deterministic_mode_asks_for_no_nccl_variable(trees: Trees) -> None:
    scenarios = [scenario("validate_deterministic_arguments")]
    ((answer,),) = run_on_device(trees.patched("core_v0.17.1", OVERLAYS), scenarios)
    assert answer["on"].all()
    with pytest.raises(RankError, match="NCCL_ALGO must be one of"):
        run_on_device(trees.pristine("core_v0.17.1"), scenarios)


def test_nothing_changes_without_an_npu(trees: Trees) -> None:
    tree = trees.patched(NEWEST, OVERLAYS)
    assert run_on_cpu([tree], (f"{CHECKS}:ask_without_npu", ())) == [[False, False, False]]


@pytest.mark.parametrize("tag", WITH_TRAINING)
def test_no_double_of_training_reaches_torchs_all_reduce(tag: str, trees: Trees) -> None:
    found = {
        tree.name: reduced_doubles(tree / "megatron" / "training" / "training.py")
        for tree in (trees.pristine(tag), trees.patched(tag, OVERLAYS))
    }
    before, after = found.values()
    assert before >= {"program_start_global", "start_time_tensor"}
    assert not after


def reduced_doubles(path: Path) -> set[str]:
    """Variables that are made as doubles and handed to `torch.distributed.all_reduce`."""
    made, reduced = set(), set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            if any(word in ast.unparse(node.value) for word in ("torch.double", "torch.float64")):
                made |= {ast.unparse(target) for target in node.targets}
        elif (
            isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.distributed.all_reduce"
        ):
            reduced.add(ast.unparse(node.args[0]))
    return made & reduced
