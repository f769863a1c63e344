"""fusions/fused-rope: off is upstream, on is the same function by one operator."""

import pytest
import torch

from features.cases import FUSED_ROPE, OVERLAYS
from features.compared import Compared, Sweep
from harness.compare import assert_near
from harness.runner import run_on_device
from harness.trees import ALL_RELEASES, Trees


@pytest.fixture(scope="module", params=ALL_RELEASES)
def compared(request: pytest.FixtureRequest, sweep: Sweep) -> Compared:
    """One release: the pristine tree, the patched one with the option off, and with it on."""
    return sweep.compare(request.param, FUSED_ROPE)


def test_off_is_upstream_bit_for_bit(compared: Compared) -> None:
    compared.assert_off_is_upstream()


def test_on_is_the_same_function(compared: Compared) -> None:
    compared.assert_on_is_the_same_function()


@pytest.mark.parametrize("tag", ["core_v0.12.1", "core_v0.19.0"])
def test_operator_takes_the_place_of_rope_fusion_and_is_called_twice_a_layer(
    trees: Trees, tag: str
) -> None:
    scenarios = [
        FUSED_ROPE.make_scenario("run_batch", {}, dtype=torch.float32, fused=True),
        FUSED_ROPE.make_scenario("run_by_megatron_default", {}, dtype=torch.float32),
        *(
            FUSED_ROPE.make_scenario("count_calls", {}, dtype=torch.float32, fused=fused)
            for fused in (False, True)
        ),
    ]
    tree = trees.patched(tag, OVERLAYS)
    want, found, off, on = run_on_device(tree, scenarios)[0]
    assert_near(found, want)
    assert (int(off["calls"]), int(on["calls"])) == (0, 4)
