"""base/jit: a disabled fuser is really disabled, and fused functions run on an NPU."""

import pytest

from ascend_sim.ranks import RankError
from harness.compare import assert_same
from harness.runner import run_on_cpu, run_on_device
from harness.trees import ALL_RELEASES, COMPARED_RELEASES, Trees
from harness.worker import Scenario

CHECKS = "features.base.jit_checks"
OVERLAYS = ("base/jit",)
CAN_DISABLE = ALL_RELEASES[3:]  # core 0.16 brought disable_jit_fuser


@pytest.mark.parametrize("tag", ALL_RELEASES)
def test_functions_are_compiled_when_first_called_unless_disabled(tag: str, trees: Trees) -> None:
    (counts,) = run_on_cpu([trees.patched(tag, OVERLAYS)], (f"{CHECKS}:count_compilations", ()))
    called = {"disabled": 0, "enabled again": 1} if tag in CAN_DISABLE else {"call": 1}
    assert counts == {"import": 0, **called, "second call": 0}


def test_upstream_compiles_at_import_so_that_disabling_comes_too_late(trees: Trees) -> None:
    (counts,) = run_on_cpu([trees.pristine("core_v0.16.1")], (f"{CHECKS}:count_compilations", ()))
    assert counts["import"] > 0


def test_fused_functions_look_and_inline_as_upstreams(trees: Trees) -> None:
    tree = trees.patched("core_v0.16.1", OVERLAYS)
    described, inlined = run_on_cpu(
        [tree], (f"{CHECKS}:describe_fused", ()), (f"{CHECKS}:compile_around_fused", ())
    )
    assert described == {"method": [3.0, 3.0], "name": "scale", "doc": "Multiply."}
    assert inlined


@pytest.mark.parametrize("tag", COMPARED_RELEASES)
def test_fused_functions_run_eagerly_on_an_npu_without_triton(tag: str, trees: Trees) -> None:
    scenarios = [Scenario(f"{CHECKS}:{name}") for name in ("compile_on_device", "run_plainly")]
    fused, plain = run_on_device(trees.patched(tag, OVERLAYS), scenarios)[0]
    assert_same(fused, plain)


def test_upstreams_fused_functions_fail_on_an_npu(trees: Trees) -> None:
    scenarios = [Scenario(f"{CHECKS}:compile_on_device")]
    with pytest.raises(RankError, match="BackendCompilerFailed"):
        run_on_device(trees.pristine("core_v0.16.1"), scenarios)
