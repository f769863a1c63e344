"""Norms, softmax, rotary embedding and flash attention of megatron.legacy, against upstream's."""

import os

import pytest

from features.legacy.fused_scenarios import count_calls, run
from harness.runner import Named, run_on_device
from harness.trees import GIT_VARIABLE, Trees
from harness.worker import Scenario

OVERLAYS = ("fusions/legacy-models", "fusions/fused-rope")
PARTS = ("rms_norm", "layer_norm", "softmax", "attention")
# bf16: two roundings of values of order 1 to 8 bits; fp32: sums in another order. Flash attention
# and the fused softmax take half precision only.
CASES = [
    *((part, "bfloat16", 3e-2) for part in PARTS),
    *((part, "float32", 2e-5) for part in PARTS[:2]),
]
OPERATORS = {
    "rms_norm": ("npu_rms_norm", 1),
    "softmax": ("npu_scaled_masked_softmax", 4),
    "attention": ("npu_fusion_attention", 1),
}

pytestmark = pytest.mark.skipif(
    GIT_VARIABLE not in os.environ,
    reason=f"NOT RUN: PyPI has no megatron.legacy; set {GIT_VARIABLE}",
)


def scenario(part: str, dtype: str, *, fused: bool) -> Scenario:
    settings = (("part", part), ("dtype", dtype), ("fused", fused))
    return Scenario(f"{run.__module__}:run", settings)


@pytest.fixture(scope="module", params=["core_v0.12.1", "core_v0.16.1", "core_v0.17.1"])
def results(request: pytest.FixtureRequest, trees: Trees) -> dict[str, list[Named]]:
    """Each case pristine, patched and off, patched and on; then the operators' calls."""
    off = [scenario(part, dtype, fused=False) for part, dtype, _ in CASES]
    on = [scenario(part, dtype, fused=True) for part, dtype, _ in CASES]
    counts = [
        Scenario(f"{count_calls.__module__}:count_calls", (("part", part), ("operator", name)))
        for part, (name, _) in OPERATORS.items()
    ]
    pristine = trees.pristine(request.param, tree="full")
    patched = trees.patched(request.param, OVERLAYS, tree="full")
    found = run_on_device(patched, [*off, *on, *counts])[0]
    ends = len(off), len(off) + len(on)
    return {
        "pristine": run_on_device(pristine, off)[0],
        "off": found[: ends[0]],
        "on": found[ends[0] : ends[1]],
        "calls": found[ends[1] :],
    }


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda n: "-".join(CASES[n][:2]))
def test_off_is_upstream_and_on_is_near(results: dict[str, list[Named]], number: int) -> None:
    tolerance = CASES[number][2]
    pristine, off, on = (results[name][number] for name in ("pristine", "off", "on"))
    assert pristine.keys() == off.keys() == on.keys()
    assert any(name.endswith("grad x") for name in on)
    for name, value in pristine.items():
        assert value.equal(off[name]), name
        assert value.float().std() > 1e-3, name
        limit = tolerance * max(1.0, value.float().abs().max().item())
        assert (value.float() - on[name].float()).abs().max() < limit, name


def test_each_part_is_the_operator(results: dict[str, list[Named]]) -> None:
    found = [int(named["calls"]) for named in results["calls"]]
    assert found == [count for _, count in OPERATORS.values()]
