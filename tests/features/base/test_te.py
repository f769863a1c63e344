"""base/te: TransformerEngine's names compute what the local layer spec computes, without it."""

from typing import Any

import pytest
import torch

from harness.compare import assert_near, assert_same
from harness.runner import Named, run_on_device
from harness.trees import ALL_RELEASES, Trees
from harness.worker import Scenario

OVERLAYS = ("base/te",)
SCENARIOS = "features.base.te_scenarios"
DTYPES = (torch.float32, torch.bfloat16)

RECIPES: dict[str, dict[str, Any]] = {
    "modern": {},
    "classic": {"normalization": "LayerNorm", "add_bias_linear": True, "qk_layernorm": True},
    "experts": {
        "num_moe_experts": 4,
        "moe_router_topk": 2,
        "moe_router_load_balancing_type": "none",
    },
}

# Upstream's router asks for a name there that only TransformerEngine brings (te_general_gemm).
ROUTER_RAISES = ("core_v0.14.0", "core_v0.15.3", "core_v0.16.1")

Key = tuple[str, torch.dtype]


def make_scenario(spec: str, recipe: str, dtype: torch.dtype) -> Scenario:
    options = (("spec", spec), ("dtype", dtype), ("recipe", RECIPES[recipe]))
    return Scenario(f"{SCENARIOS}:run_gpt", options)


def recipes_of(tag: str) -> list[str]:
    return [name for name in RECIPES if name != "experts" or tag not in ROUTER_RAISES]


@pytest.fixture(scope="module", params=ALL_RELEASES)
def compared(request: pytest.FixtureRequest, trees: Trees) -> dict[str, dict[Key, Named]]:
    """One release: pristine, and patched with the local spec and with TransformerEngine's names."""
    tag = request.param
    keys = [(recipe, dtype) for recipe in recipes_of(tag) for dtype in DTYPES]
    local, te = ([make_scenario(spec, *key) for key in keys] for spec in ("local", "te"))
    pristine = run_on_device(trees.pristine(tag), local)[0]
    patched = run_on_device(trees.patched(tag, OVERLAYS), [*local, *te])[0]
    return {
        "pristine": dict(zip(keys, pristine, strict=True)),
        "local": dict(zip(keys, patched[: len(keys)], strict=True)),
        "te": dict(zip(keys, patched[len(keys) :], strict=True)),
    }


def test_local_spec_stays_bit_for_bit(compared: dict[str, dict[Key, Named]]) -> None:
    for key, want in compared["pristine"].items():
        assert_same(compared["local"][key], want)


def test_te_spec_is_the_same_function(compared: dict[str, dict[Key, Named]]) -> None:
    for (recipe, dtype), want in compared["pristine"].items():
        assert_near(compared["te"][recipe, dtype], want, computed_in=dtype, case=recipe)
