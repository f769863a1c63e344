"""moe/token-permute: off is upstream, on is the same function by one operator each."""

import pytest
import torch

from features.cases import OVERLAYS, TOKEN_PERMUTE
from features.compared import DTYPES, Compared, Sweep
from harness.compare import assert_near, assert_same
from harness.runner import run_on_device
from harness.trees import ALL_RELEASES, COMPARED_RELEASES, Trees


@pytest.fixture(scope="module", params=ALL_RELEASES)
def compared(request: pytest.FixtureRequest, sweep: Sweep) -> Compared:
    """One release: the pristine tree, the patched one with the option off, and with it on."""
    return sweep.compare(request.param, TOKEN_PERMUTE)


def test_off_is_upstream_bit_for_bit(compared: Compared) -> None:
    compared.assert_off_is_upstream()


def test_on_is_the_same_function(compared: Compared) -> None:
    compared.assert_on_is_the_same_function()


@pytest.mark.parametrize("tag", COMPARED_RELEASES)
def test_expert_parallel_ranks_compute_the_same(trees: Trees, tag: str) -> None:
    sizes = {"expert_model_parallel_size": 2}
    options = {"expert_model_parallel_size": 2}
    off = [TOKEN_PERMUTE.make_scenario("run_gpt", options, dtype=dtype) for dtype in DTYPES]
    on = [
        TOKEN_PERMUTE.make_scenario("run_gpt", options, dtype=dtype, fused=True) for dtype in DTYPES
    ]
    pristine = run_on_device(trees.pristine(tag), off, world_size=2, sizes=sizes)
    patched = run_on_device(trees.patched(tag, OVERLAYS), [*off, *on], world_size=2, sizes=sizes)
    for wants, found in zip(pristine, patched, strict=True):
        for dtype, want, same, new in zip(DTYPES, wants, found[:2], found[2:], strict=True):
            assert_same(same, want)
            assert_near(new, want, computed_in=dtype)


def test_operators_are_launched_once_each_way(trees: Trees) -> None:
    scenarios = [
        TOKEN_PERMUTE.make_scenario("count_launches", {}, dtype=torch.float32, fused=fused)
        for fused in (False, True)
    ]
    off, on = run_on_device(trees.patched("core_v0.16.1", OVERLAYS), scenarios)[0]
    assert int(off["launches"]) == 0
    assert int(on["launches"]) == 4  # permute, unpermute and their gradients
