"""attention/multi-latent-attention: the local spec builds it, with and without the operator."""

from typing import Any

import pytest

from features.compared import DTYPES
from harness.compare import assert_near
from harness.runner import run_on_device
from harness.trees import ALL_RELEASES, Trees
from harness.worker import Scenario

SCENARIOS = "features.attention.latent_scenarios"
OVERLAYS = ("attention/flash-attention", "attention/multi-latent-attention")


def make(name: str, **options: object) -> Scenario:
    return Scenario(f"{SCENARIOS}:{name}", tuple(options.items()))


@pytest.mark.parametrize("tag", ALL_RELEASES)
def test_upstream_raises_and_here_widths_differ(trees: Trees, tag: str) -> None:
    assert "done" in run_on_device(trees.pristine(tag), [make("check_upstream_raises")])[0][0]
    cases: list[dict[str, Any]] = [
        {"dtype": dtype, "value_width": width, **more}
        for dtype in DTYPES
        for width, more in ((6, {}), (6, {"use_flash_attn": True}), (16, {}))
    ]
    scenarios = [
        *(make("run_latent", **case) for case in cases),
        *(make("run_latent", **case, dense=True) for case in cases),
        make("check_wide_values"),
    ]
    found = run_on_device(trees.patched(tag, OVERLAYS), scenarios)[0]
    assert "done" in found.pop()
    for case, got, want in zip(cases, found, found[len(cases) :], strict=False):
        assert_near(got, want, computed_in=case["dtype"], case=str(case))


def test_tensor_parallel_ranks_share_the_heads(trees: Trees) -> None:
    scenarios = [
        make(
            "run_latent", dtype=dtype, use_flash_attn=on, tensor_model_parallel_size=2, dense=not on
        )
        for dtype in DTYPES
        for on in (False, True)
    ]
    ranks = run_on_device(
        trees.patched("core_v0.16.1", OVERLAYS),
        scenarios,
        world_size=2,
        sizes={"tensor_model_parallel_size": 2},
    )
    for found in ranks:
        for dtype, want, got in zip(DTYPES, found[::2], found[1::2], strict=True):
            assert_near(got, want, computed_in=dtype)
