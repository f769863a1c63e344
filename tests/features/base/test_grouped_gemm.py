"""base/grouped-gemm: GroupedMLP trains on an NPU without the CUDA package grouped_gemm."""

import pytest
import torch

from ascend_sim.ranks import RankError
from harness.compare import assert_near
from harness.runner import run_on_cpu, run_on_device
from harness.trees import ALL_RELEASES, Trees
from harness.worker import Scenario

CHECKS = "features.base.grouped_gemm_checks"
# The MoE router of core 0.14 to 0.16 needs base/te where TransformerEngine is missing.
OVERLAYS = ("base/grouped-gemm", "base/jit", "base/te")
RELEASES = ALL_RELEASES[:4]  # core 0.17 has no GroupedMLP
DTYPES = (torch.float32, torch.bfloat16)


def scenarios(function: str, **options: object) -> list[Scenario]:
    return [
        Scenario(f"{CHECKS}:{function}", (("fused", fused), *options.items()))
        for fused in (True, False)
    ]


@pytest.mark.parametrize("tag", RELEASES)
def test_grouped_products_and_training_equal_one_expert_after_another(
    tag: str, trees: Trees
) -> None:
    pairs = [scenarios("multiply", dtype=dtype) for dtype in DTYPES] + [scenarios("train_experts")]
    flat = [scenario for pair in pairs for scenario in pair]
    answers = run_on_device(trees.patched(tag, OVERLAYS), flat)[0]
    for dtype, start in zip((*DTYPES, torch.bfloat16), range(0, len(answers), 2), strict=True):
        assert_near(answers[start], answers[start + 1], computed_in=dtype)


def test_mixed_dtypes_are_refused(trees: Trees) -> None:
    tree = trees.patched("core_v0.16.1", OVERLAYS)
    with pytest.raises(RankError, match=r"tokens are torch.float32, weights torch.bfloat16"):
        run_on_device(tree, [Scenario(f"{CHECKS}:mix_dtypes")])


def test_without_an_npu_the_package_is_missing_as_before(trees: Trees) -> None:
    tree = trees.patched("core_v0.16.1", OVERLAYS)
    assert run_on_cpu([tree], (f"{CHECKS}:is_available", ())) == [False]


def test_upstream_asks_for_the_cuda_package(trees: Trees) -> None:
    tree = trees.patched("core_v0.16.1", OVERLAYS[1:])
    with pytest.raises(RankError, match="Grouped GEMM is not available"):
        run_on_device(tree, [Scenario(f"{CHECKS}:train_experts", (("fused", True),))])
