"""base/ranges: what upstream marks with NVTX runs on an NPU and is marked there."""

import pytest

from ascend_sim.ranks import RankError
from harness.runner import run_on_cpu, run_on_device
from harness.trees import ALL_RELEASES, Trees
from harness.worker import Scenario

CHECKS = "features.base.ranges_checks"
OVERLAYS = ("base/ranges",)
MARKED_ALWAYS = ALL_RELEASES[1:5]  # these open a range whether or not anybody profiles
NODE, MARKS = Scenario(f"{CHECKS}:run_schedule_node"), Scenario(f"{CHECKS}:mark_ranges")


@pytest.mark.parametrize("tag", MARKED_ALWAYS)
def test_the_overlapped_schedule_runs_on_an_npu(tag: str, trees: Trees) -> None:
    answer, _ = run_on_device(trees.patched(tag, OVERLAYS), [NODE, MARKS])[0]
    assert answer["result"].tolist() == [0.0, 3.0, 6.0, 9.0]
    assert answer["gradient"].tolist() == [3.0] * 4


def test_ranges_of_the_newest_release_arrive_at_mstx(trees: Trees) -> None:
    assert run_on_device(trees.patched("core_v0.19.0", OVERLAYS), [MARKS]) == [[{}]]


def test_upstream_raises_at_the_first_range(trees: Trees) -> None:
    with pytest.raises(RankError, match="NVTX functions not installed"):
        run_on_device(trees.pristine("core_v0.16.1"), [NODE])


def test_ranges_stay_nvtx_without_an_npu(trees: Trees) -> None:
    tree = trees.patched("core_v0.16.1", OVERLAYS)
    seen = run_on_cpu([tree], (f"{CHECKS}:mark_ranges_without_npu", ()))
    assert seen == [["outer", "inner 1", None, None]]
