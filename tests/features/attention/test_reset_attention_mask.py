"""attention/reset-attention-mask: documents as packed sequences, with upstream's result."""

from typing import Any

import pytest
import torch

from features.cases import OVERLAYS, RESET_ATTENTION_MASK
from features.compared import DTYPES, Sweep
from features.parts import Named
from harness.compare import assert_near
from harness.runner import run_on_device
from harness.trees import ALL_RELEASES, COMPARED_RELEASES, Trees
from harness.worker import Scenario

SCENARIOS = "features.attention.documents_scenarios"


@pytest.mark.parametrize("tag", ALL_RELEASES)
def test_off_is_upstream_bit_for_bit_and_on_the_same_function(sweep: Sweep, tag: str) -> None:
    compared = sweep.compare(tag, RESET_ATTENTION_MASK)
    compared.assert_off_is_upstream()
    compared.assert_on_is_the_same_function()


@pytest.mark.parametrize("tag", COMPARED_RELEASES)
def test_no_mask_is_read_and_refusals_say_why(trees: Trees, tag: str) -> None:
    names = ("check_no_mask_is_read", "check_document_refusals")
    scenarios = [Scenario(f"{SCENARIOS}:{name}", ()) for name in names]
    found = run_on_device(trees.patched(tag, OVERLAYS), scenarios)[0]
    assert all("done" in named for named in found)


@pytest.mark.parametrize("tag", COMPARED_RELEASES)
def test_tensor_and_sequence_parallel_ranks_find_the_same_documents(trees: Trees, tag: str) -> None:
    # Upstream's own norm takes no sequence parallelism.
    parallel = {"sequence_parallel": True, "normalization": "RMSNorm", "use_fused_rmsnorm": True}
    settings: dict[str, Any] = {"world_size": 2, "sizes": {"tensor_model_parallel_size": 2}}
    masked, packed = (
        [
            RESET_ATTENTION_MASK.make_scenario(
                "run_documents", {"dtype": dtype, "packed": on, **more}
            )
            for more in ({}, parallel)
            for dtype in DTYPES
        ]
        for on in (False, True)
    )
    ranks = run_on_device(trees.patched(tag, OVERLAYS), [*masked, *packed], **settings)
    for rank in range(len(ranks)):
        for number, dtype in enumerate(DTYPES * 2):
            # A rank's share of the sequence has other tokens, so other gradients of norms.
            chosen = (
                ranks[rank][k] if number < len(DTYPES) else add_norms(k, rank, ranks)
                for k in (number, number + 4)
            )
            want, got = chosen
            assert_near(got, want, computed_in=dtype, slack=2.0)


def add_norms(number: int, rank: int, ranks: list[list[Named]]) -> Named:
    """A rank's results, with the gradients of norms of all ranks, as training adds them."""
    return {
        name: torch.stack([found[number][name] for found in ranks]).sum(0)
        if "norm" in name
        else value
        for name, value in ranks[rank][number].items()
    }
