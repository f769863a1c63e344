"""fusions/fused-swiglu: off is upstream, on is the same function by one operator."""

import os
from typing import Any

import pytest
import torch

from harness.compare import assert_near, assert_same
from harness.runner import Named, run_on_cpu, run_on_device
from harness.trees import ALL_RELEASES, COMPARED_RELEASES, GIT_VARIABLE, Trees
from harness.worker import Scenario

OVERLAYS = ("fusions/fused-swiglu",)
LEGACY = ("fusions/fused-swiglu-legacy",)
HAVE_GROUPED_MLP = ("core_v0.12.1", "core_v0.14.0", "core_v0.15.3", "core_v0.16.1")
DTYPES = (torch.float32, torch.bfloat16)

# name: (scenario, options). Each runs with the option off and on.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "functions": ("run_functions", {}),
    "mlp": ("run_mlp", {}),
    "mlp with bias": ("run_mlp", {"add_bias_linear": True}),
    "mlp, fused bias": ("run_mlp", {"add_bias_linear": True, "bias_activation_fusion": True}),
    "mlp, fused": ("run_mlp", {"bias_activation_fusion": True}),
    "weighted mlp": ("run_mlp", {"weighted": True}),
    "weighted mlp, fused": ("run_mlp", {"weighted": True, "bias_activation_fusion": True}),
    "grouped experts": ("run_grouped_experts", {}),
    "grouped experts, fused": ("run_grouped_experts", {"bias_activation_fusion": True}),
    "grouped activation": ("run_grouped_activation", {}),
    "shared expert": ("run_shared_expert", {}),
    "shared expert, fused": ("run_shared_expert", {"bias_activation_fusion": True}),
    "gpt": ("run_gpt", {}),
    "gpt, fused": ("run_gpt", {"bias_activation_fusion": True}),
}


SCENARIOS = "features.fusions.swiglu_scenarios"
OTHER_RELEASES = tuple(tag for tag in ALL_RELEASES if tag not in COMPARED_RELEASES)
# Every way into the operator; the rest of CASES differs in what stands around it.
SHORT = ("functions", "mlp with bias", "weighted mlp, fused", "grouped experts", "shared expert")

Results = dict[tuple[str, torch.dtype], Named]


def cases_for(tag: str) -> list[str]:
    return [n for n in CASES if n != "grouped activation" or tag in HAVE_GROUPED_MLP]


def make_scenario(name: str, dtype: torch.dtype, *, fused: bool) -> Scenario:
    function, options = CASES[name]
    options = options | {"dtype": dtype} | ({"fused": True} if fused else {})
    return Scenario(f"{SCENARIOS}:{function}", tuple(options.items()))


def run_cases(trees: Trees, tag: str, *, patched: bool, fused: bool) -> Results:
    """Every case of a release in both dtypes, in one process."""
    keys = [(name, dtype) for name in cases_for(tag) for dtype in DTYPES]
    scenarios = [make_scenario(name, dtype, fused=fused) for name, dtype in keys]
    tree = trees.patched(tag, OVERLAYS) if patched else trees.pristine(tag)
    return dict(zip(keys, run_on_device(tree, scenarios)[0], strict=True))


@pytest.fixture(scope="module", params=COMPARED_RELEASES)
def compared(request: pytest.FixtureRequest, trees: Trees) -> dict[str, Results]:
    """One release: the pristine tree, the patched one with the option off, and with it on."""
    return {
        "pristine": run_cases(trees, request.param, patched=False, fused=False),
        "off": run_cases(trees, request.param, patched=True, fused=False),
        "on": run_cases(trees, request.param, patched=True, fused=True),
    }


def test_off_is_upstream_bit_for_bit(compared: dict[str, Results]) -> None:
    for key, want in compared["pristine"].items():
        assert_same(compared["off"][key], want)


def test_on_is_the_same_function(compared: dict[str, Results]) -> None:
    for (name, dtype), want in compared["pristine"].items():
        assert_near(compared["on"][name, dtype], want, computed_in=dtype, case=name)


@pytest.mark.parametrize("tag", OTHER_RELEASES)
def test_on_is_the_same_function_on_the_other_releases(trees: Trees, tag: str) -> None:
    keys = [(name, dtype) for name in SHORT for dtype in DTYPES]
    scenarios = [make_scenario(*key, fused=fused) for fused in (False, True) for key in keys]
    results = run_on_device(trees.patched(tag, OVERLAYS), scenarios)[0]
    off, on = results[: len(keys)], results[len(keys) :]
    for (name, dtype), want, got in zip(keys, off, on, strict=True):
        assert_near(got, want, computed_in=dtype, case=name)


def test_on_is_the_same_function_on_two_tensor_parallel_ranks(trees: Trees) -> None:
    names = ("mlp, fused bias", "gpt")
    scenarios = [make_scenario(n, torch.float32, fused=f) for f in (False, True) for n in names]
    ranks = run_on_device(
        trees.patched("core_v0.16.1", OVERLAYS),
        scenarios,
        world_size=2,
        sizes={"tensor_model_parallel_size": 2},
    )
    for results in ranks:
        for name, want, got in zip(names, results[:2], results[2:], strict=True):
            assert_near(got, want, case=name)


def test_on_launches_the_operator_once_a_pass(trees: Trees) -> None:
    cases = {
        # Two weight-free shapes, each with and without bias, and one weighted call; the weighted
        # one computes the activation anew in the backward pass.
        "functions": (6, 3),
        "mlp": (1, 0),  # without bias or weights the gradient is torch_npu's own
        "mlp, fused bias": (1, 1),
        "weighted mlp, fused": (2, 1),
        "grouped experts": (1, 0),
        "grouped activation": (1, 0),
        "shared expert": (1, 0),
        "gpt": (2, 0),
    }
    scenarios = [count_scenario(name, fused=True) for name in cases]
    off = [count_scenario(name, fused=False) for name in cases]
    tree = trees.patched("core_v0.16.1", OVERLAYS)
    counts = [
        (int(found["npu_swiglu"]), int(found["npu_swiglu_backward"]))
        for found in run_on_device(tree, scenarios + off)[0]
    ]
    assert dict(zip(cases, counts, strict=False)) == cases
    assert counts[len(cases) :] == [(0, 0)] * len(cases)


def test_on_is_active_however_a_framework_makes_its_config(trees: Trees) -> None:
    styles = ("set after construction", "provider", "own init")
    function = "run_mlp_as_framework"
    options = {"scenario": function, "dtype": torch.float32}
    scenarios = [
        Scenario(f"{SCENARIOS}:count_launches", tuple((options | {"style": style}).items()))
        for style in styles
    ]
    found = run_on_device(trees.patched("core_v0.16.1", OVERLAYS), scenarios)[0]
    assert [int(counts["npu_swiglu"]) for counts in found] == [1, 1, 1]


def count_scenario(name: str, *, fused: bool) -> Scenario:
    function, options = CASES[name]
    options = options | {"scenario": function, "dtype": torch.float32}
    options |= {"fused": True} if fused else {}
    return Scenario(f"{SCENARIOS}:count_launches", tuple(options.items()))


def test_fp8_input_store_keeps_what_upstream_keeps(trees: Trees) -> None:
    options: tuple[tuple[str, Any], ...] = (("dtype", torch.bfloat16), ("fp8", True))
    function = f"{SCENARIOS}:run_functions"
    scenarios = [Scenario(function, options), Scenario(function, (*options, ("fused", True)))]
    off, on = run_on_device(trees.patched("core_v0.16.1", OVERLAYS), scenarios)[0]
    assert_near(on, off, computed_in=torch.bfloat16)


@pytest.mark.skipif(
    GIT_VARIABLE not in os.environ,
    reason=f"PyPI has no megatron.legacy; set {GIT_VARIABLE} to a Megatron-LM repository",
)
@pytest.mark.parametrize("tag", ["core_v0.12.1", "core_v0.15.3"])
def test_legacy_mlp_of_the_full_tree(trees: Trees, tag: str) -> None:
    function = f"{SCENARIOS}:run_legacy_mlp"
    keys = [(dtype, fused) for fused in (False, True) for dtype in DTYPES]
    scenarios = [Scenario(function, (("dtype", dt), ("fused", fused))) for dt, fused in keys]
    pristine = run_on_device(trees.pristine(tag, tree="full"), scenarios[:2])[0]
    patched = run_on_device(trees.patched(tag, LEGACY, tree="full"), scenarios)[0]
    for dtype, want, off, on in zip(DTYPES, pristine, patched[:2], patched[2:], strict=True):
        assert_same(off, want)
        assert_near(on, want, computed_in=dtype)


CHECKS = "features.fusions.swiglu_checks"


@pytest.fixture(scope="module", params=ALL_RELEASES)
def facts(request: pytest.FixtureRequest, trees: Trees) -> dict[str, Any]:
    """What one release's patched tree says without an NPU, asked in one process."""
    questions: dict[str, tuple[str, tuple[Any, ...]]] = {
        "unrefused": (f"{CHECKS}:find_unrefused_configs", ()),
        "mlp": (f"{CHECKS}:build_mlp_without_npu", ()),
        "habits": (f"{CHECKS}:find_broken_config_habits", ()),
    }
    tree = trees.patched(request.param)
    if tree.joinpath("megatron", "training").is_dir():  # before 0.17 only the git source has it
        for name, flags in (("flag off", []), ("flag on", ["--use-fused-swiglu"])):
            questions[name] = (f"{CHECKS}:parse_flags", (["--swiglu", *flags],))
    return dict(zip(questions, run_on_cpu([tree], *questions.values()), strict=True))


def test_impossible_config_is_refused_by_option_and_value(facts: dict[str, Any]) -> None:
    assert facts["unrefused"] == []


def test_module_needs_an_npu_and_its_config_does_not(facts: dict[str, Any]) -> None:
    assert facts["mlp"].startswith("RuntimeError: --use-fused-swiglu (use_fused_swiglu) needs ")


def test_field_is_keyword_only_and_survives_dataclass_tools(facts: dict[str, Any]) -> None:
    assert facts["habits"] == []


def test_flag_parses_once_and_reaches_the_config(facts: dict[str, Any]) -> None:
    assert (facts.get("flag off", False), facts.get("flag on", True)) == (False, True)
