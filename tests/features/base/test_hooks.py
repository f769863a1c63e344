"""base/hooks: each point is reached, in order, under its conditions, and is nothing otherwise."""

import pytest

from features.cases import OVERLAYS
from harness.runner import run_on_device
from harness.trees import ALL_RELEASES, Trees
from harness.worker import Scenario
from mindspeed_overlay.hook import POINTS

CHECKS = "features.base.hook_checks"


@pytest.mark.parametrize("tag", ALL_RELEASES)
def test_every_point_asks_its_features(trees: Trees, tag: str) -> None:
    scenarios = [Scenario(f"{CHECKS}:check_{point}") for point in POINTS]
    found = run_on_device(trees.patched(tag, OVERLAYS), scenarios)[0]
    assert all("done" in named for named in found)
