"""fusions/fused-rmsnorm: off is upstream, on is the same function by one operator."""

import pytest
import torch

from features.cases import FUSED_RMSNORM, OVERLAYS
from features.compared import DTYPES, Compared, Sweep
from harness.compare import assert_near
from harness.runner import run_on_device
from harness.trees import ALL_RELEASES, Trees


# From the newest on: a process beside this one begins with the oldest, and they share results.
@pytest.fixture(scope="module", params=ALL_RELEASES[::-1])
def compared(request: pytest.FixtureRequest, sweep: Sweep) -> Compared:
    """One release: the pristine tree, the patched one with the option off, and with it on."""
    return sweep.compare(request.param, FUSED_RMSNORM)


def test_off_is_upstream_bit_for_bit(compared: Compared) -> None:
    compared.assert_off_is_upstream()


def test_on_is_the_same_function(compared: Compared) -> None:
    compared.assert_on_is_the_same_function()


def test_zero_centered_weights_follow_the_formula_and_every_norm_is_one_call(trees: Trees) -> None:
    scenarios = [FUSED_RMSNORM.make_scenario("run_zero_centered", {}, dtype=dt) for dt in DTYPES]
    scenarios += [
        FUSED_RMSNORM.make_scenario("count_calls", {}, dtype=torch.float32, fused=fused)
        for fused in (False, True)
    ]
    tree = trees.patched("core_v0.16.1", OVERLAYS)
    *centered, off, on = run_on_device(tree, scenarios)[0]
    for dtype, found in zip(DTYPES, centered, strict=True):
        want = {name[5:]: value for name, value in found.items() if name.startswith("want ")}
        assert_near({name: found[name] for name in want}, want, computed_in=dtype)
    # Two layers of input, MLP, query and key norms, and the final one.
    assert (int(off["calls"]), int(on["calls"])) == (0, 9)
