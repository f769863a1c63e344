"""attention/fusion-attention-v2 and attention/alibi, which stands on it."""

from typing import Any

import pytest

from features.cases import ALIBI, FUSION_ATTENTION_V2, OVERLAYS
from features.compared import DTYPES, Feature, Sweep
from harness.compare import assert_near, assert_same
from harness.runner import run_on_device
from harness.trees import ALL_RELEASES, COMPARED_RELEASES, Trees
from harness.worker import Scenario

CHECKS = "features.attention.second_version_checks"
NAMES = (
    "check_second_alone",
    "check_second_refusals",
    "check_alibi_calls",
    "check_alibi_refusals",
)
FEATURES = pytest.mark.parametrize("feature", [FUSION_ATTENTION_V2, ALIBI], ids=["v2", "alibi"])


@FEATURES
@pytest.mark.parametrize("tag", ALL_RELEASES)
def test_off_is_upstream_bit_for_bit_and_on_the_same_function(
    sweep: Sweep, tag: str, feature: Feature
) -> None:
    compared = sweep.compare(tag, feature)
    compared.assert_off_is_upstream()
    compared.assert_on_is_the_same_function()


@pytest.mark.parametrize("tag", COMPARED_RELEASES)
def test_operator_calls_and_refusals_are_as_promised(trees: Trees, tag: str) -> None:
    scenarios = [Scenario(f"{CHECKS}:{name}", ()) for name in NAMES]
    found = run_on_device(trees.patched(tag, OVERLAYS), scenarios)[0]
    assert all("done" in named for named in found)


@pytest.mark.parametrize("tag", COMPARED_RELEASES)
def test_tensor_parallel_ranks_have_the_slopes_of_their_heads(trees: Trees, tag: str) -> None:
    # Upstream's own norm takes no sequence parallelism.
    parallel = {
        "sequence_parallel": True,
        "normalization": "RMSNorm",
        "use_fused_rmsnorm": True,
    }
    settings: dict[str, Any] = {"world_size": 2, "sizes": {"tensor_model_parallel_size": 2}}
    dense = [ALIBI.make_scenario("run_gpt", {"dtype": dtype}) for dtype in DTYPES]
    spread = [ALIBI.make_scenario("run_gpt", {"dtype": dtype, **parallel}) for dtype in DTYPES]
    on = [
        ALIBI.make_scenario("run_gpt", {"dtype": dtype, "alibi": True, **more})
        for more in ({}, parallel)
        for dtype in DTYPES
    ]
    tree = trees.patched(tag, OVERLAYS)
    pristine = run_on_device(trees.pristine(tag), dense, **settings)
    patched = run_on_device(tree, [*dense, *spread, *on], **settings)
    for wanted, found in zip(pristine, patched, strict=True):
        for off, want in zip(found, wanted, strict=False):
            assert_same(off, want)
        for dtype, want, got in zip(DTYPES * 2, found, found[4:], strict=False):
            assert_near(got, want, computed_in=dtype, slack=2.0)
