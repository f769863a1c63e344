"""base/te: TransformerEngine's names compute what the local layer spec computes, without it."""

from pathlib import Path
from typing import Any

import pytest
import torch

from features.base import te_sites
from harness.compare import assert_near, assert_same
from harness.runner import Named, run_on_cpu, run_on_device
from harness.trees import ALL_RELEASES, COMPARED_RELEASES, Trees
from harness.worker import Scenario

OVERLAYS = ("base/te",)
ACCELERATED = ("base/te", "attention/flash-attention", "fusions/fused-rmsnorm")
SCENARIOS = "features.base.te_scenarios"
CHECKS = "features.base.te_checks"
DTYPES = (torch.float32, torch.bfloat16)
OTHER_RELEASES = tuple(tag for tag in ALL_RELEASES if tag not in COMPARED_RELEASES)

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


def make_scenario(
    spec: str, recipe: str, dtype: torch.dtype = torch.float32, **changes: Any
) -> Scenario:
    settings = RECIPES[recipe] | changes
    options = (("spec", spec), ("dtype", dtype), ("recipe", settings))
    return Scenario(f"{SCENARIOS}:run_gpt", options)


def call(function: str, *options: tuple[str, Any]) -> Scenario:
    return Scenario(f"{SCENARIOS}:{function}", options)


def list_cases(tag: str) -> list[Key]:
    if tag in OTHER_RELEASES:
        return [("modern", torch.float32)]
    recipes = [name for name in RECIPES if name != "experts" or tag not in ROUTER_RAISES]
    return [(recipe, dtype) for recipe in recipes for dtype in DTYPES]


Compared = dict[str, list[Named]]


@pytest.fixture(scope="module", params=ALL_RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    tag: str = request.param
    return tag


@pytest.fixture(scope="module")
def compared(release: str, trees: Trees) -> Compared:
    """One release: pristine, and patched with the local spec and with TransformerEngine's names."""
    cases = list_cases(release)
    local, te = ([make_scenario(spec, *case) for case in cases] for spec in ("local", "te"))
    keys = [call("list_keys", ("recipe", recipe)) for recipe in RECIPES.values()]
    patched = run_on_device(trees.patched(release, OVERLAYS), [*local, *te, *keys])[0]
    return {
        "pristine": run_on_device(trees.pristine(release), local)[0],
        "local": patched[: len(cases)],
        "te": patched[len(cases) : 2 * len(cases)],
        "keys": patched[2 * len(cases) :],
    }


def test_local_spec_stays_bit_for_bit(compared: Compared) -> None:
    for got, want in zip(compared["local"], compared["pristine"], strict=True):
        assert_same(got, want)


def test_te_spec_is_the_same_function(compared: Compared, release: str) -> None:
    cases = zip(list_cases(release), compared["te"], compared["pristine"], strict=True)
    for (recipe, dtype), got, want in cases:
        assert_near(got, want, computed_in=dtype, case=recipe)


def test_state_dict_has_the_recorded_keys(compared: Compared) -> None:
    recorded = read_recorded_keys()
    for recipe, found in zip(RECIPES, compared["keys"], strict=True):
        listed = [f"{name} {int(size)}" for name, size in found.items()]
        assert [line for line in listed if ".layers.1." not in line] == recorded[recipe]
        second = [line.replace(".layers.1.", ".layers.0.") for line in listed]
        assert sorted(set(second)) == sorted(recorded[recipe])


def read_recorded_keys() -> dict[str, list[str]]:
    text = Path(__file__).with_name("te_state_keys.txt").read_text("utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    sections: dict[str, list[str]] = {}
    for line in lines:
        if line.startswith("["):
            section = sections.setdefault(line.strip("[]"), [])
        else:
            section.append(line)
    return sections


def test_experts_are_the_same_function_where_upstream_cannot_route(trees: Trees) -> None:
    tree = trees.patched("core_v0.16.1", OVERLAYS)
    local, te = run_on_device(tree, [make_scenario(s, "experts") for s in ("local", "te")])[0]
    assert_near(te, local)


@pytest.mark.parametrize("tag", COMPARED_RELEASES)
def test_te_spec_on_two_tensor_parallel_ranks(trees: Trees, tag: str) -> None:
    plain: dict[str, Any] = {}
    biased: dict[str, Any] = {"add_bias_linear": True, "normalization": "LayerNorm"}
    local = [make_scenario("local", "modern"), make_scenario("local", "modern", **biased)]
    te = [
        make_scenario("te", "modern", sequence_parallel=parallel, **changes)
        for changes in (plain, biased)
        for parallel in (False, True)
    ]
    ranks: dict[str, Any] = {"world_size": 2, "sizes": {"tensor_model_parallel_size": 2}}
    wanted = run_on_device(trees.pristine(tag), local, **ranks)
    found = run_on_device(trees.patched(tag, OVERLAYS), te, **ranks)
    for want, got in zip(wanted, found, strict=True):
        for case in range(4):
            assert_near(got[case], want[case // 2], case=f"case {case}")


def test_weight_gradients_add_up_in_main_grad(trees: Trees) -> None:
    tree = trees.patched("core_v0.16.1", OVERLAYS)
    scenarios = [call("run_fused_weight_gradient", ("fused", fused)) for fused in (False, True)]
    apart, fused = run_on_device(tree, scenarios)[0]
    assert_same(fused, apart)
    assert all((value - 1).any() for name, value in fused.items() if name != "experts weight1")


def test_attention_keeps_what_its_mask_says(trees: Trees) -> None:
    tree = trees.patched("core_v0.16.1", ACCELERATED)
    keys = [(name, dtype) for dtype in DTYPES for name in ("naive", "auto", "unfused")]
    scenarios = [call("run_attention", ("backend", name), ("dtype", dt)) for name, dt in keys]
    found = dict(zip(keys, run_on_device(tree, scenarios)[0], strict=True))
    for (name, dtype), got in found.items():
        assert_near(got, found["naive", dtype], computed_in=dtype, case=name)


def test_operators_are_launched_where_they_are_asked_for(trees: Trees) -> None:
    cases: dict[str, tuple[str, dict[str, Any], int]] = {
        "auto": ("npu_fusion_attention", {}, 2),
        "flash": ("npu_fusion_attention", {"attention_backend": "flash"}, 2),
        "unfused": ("npu_fusion_attention", {"attention_backend": "unfused"}, 0),
        "norm": ("npu_rms_norm", {"use_fused_rmsnorm": True}, 5),
        "norm, off": ("npu_rms_norm", {}, 0),
    }
    scenarios = [
        call("count_launches", ("operator", o), ("recipe", r)) for o, r, _ in cases.values()
    ]
    found = run_on_device(trees.patched("core_v0.16.1", ACCELERATED), scenarios)[0]
    launches = {name: int(named["launches"]) for name, named in zip(cases, found, strict=True)}
    assert launches == {name: wanted for name, (_, _, wanted) in cases.items()}
    for named in found:
        assert_near({"losses": named["losses"]}, {"losses": found[2]["losses"]})


STRICTNESS = ("assume_ok_unexpected", "raise_all")


@pytest.mark.parametrize("tag", COMPARED_RELEASES)
def test_checkpoints_move_both_ways(trees: Trees, tag: str, tmp_path: Path) -> None:
    def save(spec: str) -> Scenario:
        return checkpoint("save_gpt", spec, tmp_path / spec)

    def load(spec: str, written: str, strictness: str) -> Scenario:
        return checkpoint("load_gpt", spec, tmp_path / written, ("strictness", strictness))

    for spec in ("local", "te"):
        (tmp_path / spec).mkdir()
    patched = trees.patched(tag, OVERLAYS)
    te = run_on_device(patched, [save("te"), *(load("te", "te", s) for s in STRICTNESS)])[0]
    pristine = run_on_device(
        trees.pristine(tag), [save("local"), load("local", "te", STRICTNESS[0])]
    )[0]
    pairs = (("te", "local"), ("local", "te"))
    loads = [load(*pair, strictness) for pair in pairs for strictness in STRICTNESS]
    loaded = run_on_device(patched, loads)[0]
    for named in (*te, *pristine, *loaded):
        assert_near(named, pristine[0])


def checkpoint(function: str, spec: str, folder: Path, *options: tuple[str, Any]) -> Scenario:
    common = (("spec", spec), ("dtype", torch.float32), ("folder", str(folder)))
    return call(function, *common, ("recipe", {}), *options)


def test_checkpoint_of_two_tensor_parallel_ranks_loads_on_one(trees: Trees, tmp_path: Path) -> None:
    tree = trees.patched("core_v0.16.1", OVERLAYS)
    written = checkpoint("save_gpt", "te", tmp_path)
    read = checkpoint("load_gpt", "te", tmp_path, ("strictness", "raise_all"))
    sizes = {"tensor_model_parallel_size": 2}
    two = run_on_device(tree, [written], world_size=2, sizes=sizes)[0]
    one = run_on_device(tree, [read])[0]
    assert_near(one[0], two[0])


# Which TransformerEngine: asked in processes without an NPU.

NAMES = (f"{CHECKS}:describe_names", ())
WARNINGS = (f"{CHECKS}:import_with_warnings", ())


@pytest.mark.parametrize("tag", COMPARED_RELEASES)
def test_wrappers_are_classes_over_the_stand_in(trees: Trees, tag: str) -> None:
    found = run_on_cpu([trees.patched(tag, OVERLAYS)], WARNINGS, NAMES)
    assert found[0] == []
    assert found[1] == {
        "base": "mindspeed.te.pytorch.linear",
        "have": found[1]["have"],
        "version": "2.0.0+mindspeed",
        "at least 1.9": True,
        "at least 2.1": False,
        "stand-in": True,
        "importable": False,
    }
    assert found[1]["have"] is (None if tag == "core_v0.12.1" else True)


@pytest.mark.parametrize("tag", ["core_v0.12.1", "core_v0.16.1", "core_v0.17.1"])
def test_masks_of_a_t5_dataset_change_only_for_the_spec_with_these_names(
    trees: Trees, tag: str
) -> None:
    questions = [(f"{CHECKS}:describe_t5_masks", (use_local,)) for use_local in (True, False)]
    pristine = run_on_cpu([trees.pristine(tag)], *questions)
    patched = run_on_cpu([trees.patched(tag, OVERLAYS)], *questions)
    assert patched[0] == pristine[0]
    padding = [[[[False, False, True]]], [[[False, True, True]]]]
    assert patched[1] == [padding, None, padding, padding]
    if tag == "core_v0.17.1":  # the pristine tree takes its TransformerEngine for an old one
        assert len(pristine[1][0][0][0]) == 3
    else:
        assert pristine[1] in ("ModuleNotFoundError", "TypeError")


@pytest.mark.parametrize("fault", ["raise OSError('libcudart.so.12: not found')", "import absent"])
def test_broken_transformer_engine_is_reported_and_counts_as_absent(
    trees: Trees, tmp_path: Path, fault: str
) -> None:
    package = tmp_path / "transformer_engine"
    package.mkdir()
    (package / "__init__.py").write_text("from . import inner\n")
    (package / "inner.py").write_text(f"{fault}\n")
    found = run_on_cpu([trees.patched("core_v0.16.1", OVERLAYS), tmp_path], WARNINGS, NAMES)
    assert len(found[0]) == 1
    assert "cannot be imported (" in found[0][0]
    assert found[1]["stand-in"]
    assert not found[1]["importable"]


@pytest.mark.parametrize("tag", ["core_v0.12.1", "core_v0.16.1"])
def test_working_transformer_engine_wins(trees: Trees, tmp_path: Path, tag: str) -> None:
    write_transformer_engine(tmp_path / "transformer_engine", version="2.3.0")
    found = run_on_cpu([trees.patched(tag, OVERLAYS), tmp_path], WARNINGS, NAMES)
    assert found[0] == []
    assert (found[1]["base"], found[1]["version"]) == ("transformer_engine.pytorch", "2.3.0")
    assert not found[1]["stand-in"]


def write_transformer_engine(folder: Path, *, version: str) -> None:
    """A package whose modules have every class that is asked of them."""
    named = (
        "def __getattr__(name):\n"
        "    if name.startswith('__') or not name[:1].isupper():\n"
        "        raise AttributeError(name)\n"
        "    return type(name, (__import__('torch').nn.Module,), {'__module__': __name__})\n"
    )
    modules = {
        "__init__": f"__version__ = {version!r}\nfrom . import common, pytorch\n",
        "common/__init__": "from . import recipe\n",
        "common/recipe": named,
        "pytorch/__init__": f"from . import distributed, fp8, ops, tensor\n{named}",
        "pytorch/distributed": named.replace(" or not name[:1].isupper()", ""),
        "pytorch/fp8": f"fp8_autocast = fp8_model_init = None\n{named}",
        "pytorch/ops": named,
        "pytorch/tensor": named,
    }
    for name, text in modules.items():
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_what_cannot_be_done_is_refused_by_name(trees: Trees) -> None:
    tree = trees.patched("core_v0.16.1", OVERLAYS)
    found, forgotten = run_on_cpu(
        [tree], (f"{CHECKS}:find_refusals", ()), (f"{CHECKS}:find_forgotten_norms", ())
    )
    wanted = {
        "fp8": "RuntimeError: TEColumnParallelLinear: fp8=hybrid needs an installed",
        "overlap": "RuntimeError: Linear: tp_comm_overlap (ub_overlap_ag) needs an installed",
        "delayed gradients": "RuntimeError: Linear: delay_wgrad_compute=True needs an installed",
        "symmetric": "RuntimeError: LayerNormLinear: symmetric_ar_type=two_shot needs an installed",
        "unknown": "TypeError: unexpected argument 'colour'",
        "recipe": "RuntimeError: the low precision recipe DelayedScaling needs an installed",
        "autocast": "RuntimeError: fp8_autocast",
        "operations": "RuntimeError: transformer_engine.pytorch.ops.Sequential needs an installed",
        "offset": "RuntimeError: DotProductAttention with softmax_type=learnable needs an",
        "padding shape": "ValueError: attn_mask_type padding needs a bool attention_mask of shape",
        "mask kind": "ValueError: attn_mask_type must be one of",
        "operator": "RuntimeError: attention_backend=flash asks for Ascend's operator: it needs",
        "other spec": "ValueError: attention_backend=local is the attention of the local",
    }
    assert {name: text[: len(wanted[name])] for name, text in found.items()} == wanted
    assert forgotten == []


def test_every_place_that_asks_for_transformer_engine_is_decided(trees: Trees) -> None:
    sites = {
        tag.removeprefix("core_v"): te_sites.find_sites(trees.pristine(tag)) for tag in ALL_RELEASES
    }
    assert {name for found in sites.values() for name in found} == set(te_sites.DECISIONS)
    document = te_sites.DOCUMENT.read_text("utf-8")
    assert te_sites.replace_table(document, te_sites.make_table(sites)) == document
