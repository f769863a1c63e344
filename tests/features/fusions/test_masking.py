"""fusions/affinity-cross-entropy and vocab-parallel-index-put: the same numbers, no index."""

import pytest
import torch

from features.cases import AFFINITY_CROSS_ENTROPY, OVERLAYS, VOCAB_PARALLEL_INDEX_PUT
from features.compared import DTYPES, Compared, Feature, Sweep
from harness.compare import assert_same
from harness.runner import run_on_device
from harness.trees import ALL_RELEASES, COMPARED_RELEASES, Trees

FEATURES = (AFFINITY_CROSS_ENTROPY, VOCAB_PARALLEL_INDEX_PUT)


@pytest.fixture(scope="module", params=ALL_RELEASES)
def tag(request: pytest.FixtureRequest) -> str:
    """A release."""
    return str(request.param)


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.overlay)
def test_off_and_on_are_upstream_bit_for_bit(sweep: Sweep, tag: str, feature: Feature) -> None:
    compared: Compared = sweep.compare(tag, feature)
    compared.assert_off_is_upstream()
    for key, want in compared.pristine.items():
        assert_same(compared.on[key], want)


@pytest.mark.parametrize("tag", COMPARED_RELEASES)
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_tensor_parallel_ranks_get_the_same_bits_without_an_index(
    trees: Trees, tag: str, sequence_parallel: bool
) -> None:
    common = {"sequence_parallel": sequence_parallel}
    keys = [
        (name, dtype)
        for name in ("run_gpt", "run_embedding")
        for dtype in DTYPES
        if not (sequence_parallel and name == "run_gpt")  # 13 tokens do not split
    ]
    feature = AFFINITY_CROSS_ENTROPY
    off = [feature.make_scenario(name, common, dtype=dtype) for name, dtype in keys]
    on = [feature.make_scenario(name, common, dtype=dtype, fused=True) for name, dtype in keys]
    counts = [
        feature.make_scenario("count_index_puts", {}, dtype=torch.float32, fused=fused)
        for fused in (False, True)
    ]
    sizes = {"tensor_model_parallel_size": 2}
    pristine = run_on_device(trees.pristine(tag), off, world_size=2, sizes=sizes)
    patched = run_on_device(
        trees.patched(tag, OVERLAYS), [*off, *on, *counts], world_size=2, sizes=sizes
    )
    for wants, found in zip(pristine, patched, strict=True):
        for want, same, new in zip(wants, found, found[len(off) :], strict=False):
            assert_same(same, want)
            assert_same(new, want)
        before, after = (int(named["index_puts"]) for named in found[-2:])
        assert (before, after) == (4, 0)
