"""attention/flash-attention: off is upstream, on is the same function by one operator."""

from typing import Any

import pytest
import torch

from features.cases import FLASH_ATTENTION, OVERLAYS
from features.compared import Compared, Sweep
from harness.compare import assert_near, assert_same
from harness.runner import run_on_device
from harness.trees import ALL_RELEASES, COMPARED_RELEASES, Trees
from harness.worker import Scenario

CHECKS = "features.attention.attention_device_checks"
# These assert by themselves, and return nothing to compare.
DEVICE_CHECKS = (
    "check_refusals",
    "check_selection",
    "check_sharing",
    "check_empty_rows",
    "check_dropout",
)
# These return what is found and what is wanted.
BESIDE_DENSE: dict[str, tuple[str, dict[str, Any]]] = {
    "causal by option": ("run_sparse_mode", {"mode": 2}),
    "band by option": ("run_sparse_mode", {"mode": 4}),
    "bottom right": ("run_bottom_right", {}),
}
NEWER_KINDS = {"core_v0.12.1": ("bottom right",)}


@pytest.fixture(scope="module", params=ALL_RELEASES)
def compared(request: pytest.FixtureRequest, sweep: Sweep) -> Compared:
    """One release: the pristine tree, the patched one with the option off, and with it on."""
    return sweep.compare(request.param, FLASH_ATTENTION)


def test_off_is_upstream_bit_for_bit(compared: Compared) -> None:
    compared.assert_off_is_upstream()


def test_on_is_the_same_function(compared: Compared) -> None:
    compared.assert_on_is_the_same_function()


def make_check(name: str, **options: Any) -> Scenario:
    return Scenario(f"{CHECKS}:{name}", tuple(options.items()))


@pytest.mark.parametrize("tag", COMPARED_RELEASES)
def test_masks_selection_sharing_and_dropout_are_as_promised(trees: Trees, tag: str) -> None:
    dense = [case for name, case in BESIDE_DENSE.items() if name not in NEWER_KINDS.get(tag, ())]
    scenarios = [
        *(make_check(name) for name in DEVICE_CHECKS),
        *(make_check("run_recomputed", recompute=recompute) for recompute in (False, True)),
        *(make_check(name, **options) for name, options in dense),
    ]
    tree = trees.patched(tag, OVERLAYS)
    found = run_on_device(tree, scenarios)[0]
    assert all("done" in named for named in found[: len(DEVICE_CHECKS)])
    kept, recomputed, *beside = found[len(DEVICE_CHECKS) :]
    assert_same(recomputed, kept)
    for named in beside:
        assert_near({"out": named["found"]}, {"out": named["want"]})


def test_ranks_drop_other_scores_unless_they_share_the_sequence(trees: Trees) -> None:
    scenarios = [make_check("run_dropout_on_rank", sequence_parallel=s) for s in (False, True)]
    first, second = run_on_device(
        trees.patched("core_v0.16.1", OVERLAYS),
        scenarios,
        world_size=2,
        sizes={"tensor_model_parallel_size": 2},
    )
    assert not torch.equal(first[0]["kept"], second[0]["kept"])
    assert torch.equal(first[1]["kept"], second[1]["kept"])
