"""fusions/fused-softmax: the same function by one operator, where upstream asks its CUDA kernel."""

from typing import Any

import pytest
import torch

from features.cases import FUSED_SOFTMAX, OVERLAYS
from features.compared import Compared, Sweep
from harness.runner import run_on_device
from harness.trees import ALL_RELEASES, COMPARED_RELEASES, Trees


@pytest.fixture(scope="module", params=ALL_RELEASES)
def compared(request: pytest.FixtureRequest, sweep: Sweep) -> Compared:
    """One release: the pristine tree, the patched one without fusion, and with it."""
    return sweep.compare(request.param, FUSED_SOFTMAX)


def test_off_is_upstream_bit_for_bit(compared: Compared) -> None:
    compared.assert_off_is_upstream()


def test_on_is_the_same_function(compared: Compared) -> None:
    compared.assert_on_is_the_same_function()


SIZES: list[tuple[int, dict[str, Any]]] = [
    (1, {"queries": 64, "keys": 64}),
    (1, {"queries": 32, "keys": 64, "kind": "no_mask"}),
    (0, {"queries": 36, "keys": 36}),  # upstream's kernel takes it, the operator does not
    (0, {"queries": 16, "keys": 16}),  # upstream does not ask its kernel
]


@pytest.mark.parametrize("tag", COMPARED_RELEASES)
def test_operator_is_called_for_the_sizes_that_it_takes(trees: Trees, tag: str) -> None:
    scenarios = [
        FUSED_SOFTMAX.make_scenario("count_calls", options, dtype=torch.bfloat16)
        for _, options in SIZES
    ]
    found = run_on_device(trees.patched(tag, OVERLAYS), scenarios)[0]
    assert [int(named["calls"]) for named in found] == [calls for calls, _ in SIZES]


@pytest.mark.parametrize("tag", COMPARED_RELEASES)
def test_pristine_tree_raises_where_the_operator_acts(trees: Trees, tag: str) -> None:
    options = {"queries": 64, "keys": 64, "fused": True}
    scenario = FUSED_SOFTMAX.make_scenario("run_softmax", options, dtype=torch.bfloat16)
    with pytest.raises(Exception, match="scaled_masked_softmax_cuda"):
        run_on_device(trees.pristine(tag), [scenario])
