"""attention/flash-attention: off is upstream, on is the same function by one operator."""

from typing import Any

import pytest
import torch

from harness.compare import assert_near, assert_same
from harness.runner import Named, run_on_device
from harness.trees import ALL_RELEASES, COMPARED_RELEASES, Trees
from harness.worker import Scenario

OVERLAYS = ("attention/flash-attention",)
SCENARIOS = "features.attention.attention_scenarios"
DTYPES = (torch.float32, torch.bfloat16)
# Sliding windows and softmax offsets in DotProductAttention.
SINCE_WINDOWS = ALL_RELEASES[ALL_RELEASES.index("core_v0.15.3") :]

# name: (scenario, options). Each runs with the option off and on.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "causal": ("run_core", {}),
    "causal, one token": ("run_core", {"queries": 1, "keys": 1}),
    "causal, decoding": ("run_core", {"queries": 1, "keys": 9}),
    "causal, triangle": ("run_core", {"mask": "triangle"}),
    "causal, documents": ("run_core", {"mask": "documents", "queries": 12, "keys": 12}),
    "causal, grouped queries": ("run_core", {"groups": 2}),
    "causal, one key head": ("run_core", {"groups": 1}),
    "causal, own scale": ("run_core", {"scale": 0.3}),
    "causal, layer scaling": ("run_core", {"apply_query_key_layer_scaling": True, "layer": 3}),
    "causal, long": ("run_long", {}),
    "padding, row": ("run_core", {"kind": "padding", "mask": "row padding"}),
    "padding, full": ("run_core", {"kind": "padding", "mask": "full padding", "groups": 2}),
    "padding, no mask": ("run_core", {"kind": "padding"}),
    "no mask": ("run_core", {"kind": "no_mask"}),
    "arbitrary": ("run_core", {"kind": "arbitrary", "mask": "shared"}),
    "cross": ("run_core", {"kind": "padding", "mask": "full padding", "queries": 7}),
    "cross, no mask": ("run_core", {"kind": "no_mask", "queries": 14}),
    "packed": ("run_packed", {"padded": False}),
    "packed, padded": ("run_packed", {"padded": True, "tail": 2}),
    "packed, not causal": ("run_packed", {"padded": True, "kind": "padding"}),
    "packed, cross": ("run_packed", {"padded": True, "kind": "no_mask", "keys_differ": True}),
    "gpt": ("run_gpt", {}),
    "gpt, no mask": ("run_gpt", {"with_mask": False}),
}
WINDOW_CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "window": ("run_core", {"window_size": (3, 0)}),
    "window, mask given": ("run_core", {"window_size": (2, 1), "mask": "triangle"}),
    "window, decoding": ("run_core", {"window_size": (3, 0), "queries": 1, "keys": 9}),
    "window, skipped": (
        "run_core",
        {"window_size": (3, 0), "window_attn_skip_freq": 2, "layer": 2},
    ),
    "off-by-one": ("run_core", {"softmax_type": "off-by-one"}),
    "learnable offset": ("run_core", {"softmax_type": "learnable", "groups": 2}),
    "packed, learnable offset": ("run_packed", {"padded": True, "softmax_type": "learnable"}),
}

Results = dict[tuple[str, torch.dtype], Named]


def find_cases(tag: str) -> dict[str, tuple[str, dict[str, Any]]]:
    return CASES | WINDOW_CASES if tag in SINCE_WINDOWS else CASES


def make_scenario(function: str, options: dict[str, Any], **more: Any) -> Scenario:
    return Scenario(f"{SCENARIOS}:{function}", tuple((options | more).items()))


def run_cases(trees: Trees, tag: str, *, patched: bool, flash: bool) -> Results:
    """Every case of a release in both dtypes, in one process."""
    cases = find_cases(tag)
    keys = [(name, dtype) for name in cases for dtype in DTYPES]
    more = {"flash": True} if flash else {}
    scenarios = [make_scenario(*cases[name], dtype=dtype, **more) for name, dtype in keys]
    tree = trees.patched(tag, OVERLAYS) if patched else trees.pristine(tag)
    return dict(zip(keys, run_on_device(tree, scenarios)[0], strict=True))


@pytest.fixture(scope="module", params=ALL_RELEASES)
def compared(request: pytest.FixtureRequest, trees: Trees) -> dict[str, Results]:
    """One release: the pristine tree, the patched one with the option off, and with it on."""
    return {
        "pristine": run_cases(trees, request.param, patched=False, flash=False),
        "off": run_cases(trees, request.param, patched=True, flash=False),
        "on": run_cases(trees, request.param, patched=True, flash=True),
    }


def test_off_is_upstream_bit_for_bit(compared: dict[str, Results]) -> None:
    for key, want in compared["pristine"].items():
        assert_same(compared["off"][key], want)


def test_on_is_the_same_function(compared: dict[str, Results]) -> None:
    for (name, dtype), want in compared["pristine"].items():
        assert_near(compared["on"][name, dtype], want, computed_in=dtype, case=name)
