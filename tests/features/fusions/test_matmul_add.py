"""fusions/matmul-add: accumulating in main_grad gives the gradients that upstream adds after."""

import pytest
import torch

from features.cases import MATMUL_ADD, OVERLAYS
from features.compared import DTYPES, Compared, Sweep
from harness.compare import assert_near
from harness.runner import run_on_cpu, run_on_device
from harness.trees import ALL_RELEASES, COMPARED_RELEASES, Trees
from harness.worker import Scenario


# From the newest on: a process beside this one begins with the oldest, and they share results.
@pytest.fixture(scope="module", params=ALL_RELEASES[::-1])
def compared(request: pytest.FixtureRequest, sweep: Sweep) -> Compared:
    """One release: the pristine tree, the patched one with the fusion off, and with it on."""
    return sweep.compare(request.param, MATMUL_ADD)


def test_off_is_upstream_bit_for_bit(compared: Compared) -> None:
    compared.assert_off_is_upstream()


def test_on_is_the_same_function(compared: Compared) -> None:
    compared.assert_on_is_the_same_function()


@pytest.mark.parametrize("tag", COMPARED_RELEASES)
def test_on_two_tensor_parallel_ranks_with_sequence_parallelism(trees: Trees, tag: str) -> None:
    sizes = {"tensor_model_parallel_size": 2}
    off, on = (
        [MATMUL_ADD.make_scenario("run_linears", more, dtype=dtype) for dtype in DTYPES]
        for more in ({}, {"fused": True})
    )
    want = run_on_device(trees.pristine(tag), off, world_size=2, sizes=sizes)
    got = run_on_device(trees.patched(tag, OVERLAYS), on, world_size=2, sizes=sizes)
    for rank in range(2):
        for number, dtype in enumerate(DTYPES):
            assert_near(got[rank][number], want[rank][number], computed_in=dtype)


def test_every_linear_layer_is_one_call_and_each_dtype_adds_or_is_refused(trees: Trees) -> None:
    half, single = torch.bfloat16, torch.float32
    pairs = [(half, single), (torch.float16, single), (half, half), (single, single)]
    scenarios = [
        MATMUL_ADD.make_scenario("count_calls", {}, dtype=half, fused=fused)
        for fused in (False, True)
    ]
    scenarios += [
        MATMUL_ADD.make_scenario("add_directly", {}, dtype=dtype, grad_dtype=grad_dtype)
        for dtype, grad_dtype in pairs
    ]
    scenarios.append(Scenario(f"{MATMUL_ADD.scenarios}:refuse_third_dtype"))
    tree = trees.patched("core_v0.16.1", OVERLAYS)
    off, on, *added, _ = run_on_device(tree, scenarios)[0]
    assert off["calls"] == 0
    assert on["calls"] == on["linears"]
    for (_, grad_dtype), found in zip(pairs, added, strict=True):
        # The products are exact in fp32: only the sum is rounded.
        limit = 1e-6 if grad_dtype is single else 1e-2
        torch.testing.assert_close(found["grad"], found["want"], rtol=limit, atol=limit)


def test_without_an_npu_upstream_says_what_it_lacks(trees: Trees) -> None:
    tree = trees.patched("core_v0.16.1", OVERLAYS)
    (said,) = run_on_cpu([tree], ("features.fusions.matmul_add_checks:ask_without_npu", ()))
    assert "gradient_accumulation_fusion" in said
    assert "CUDA extension" in said
