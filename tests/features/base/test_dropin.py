"""base/dropin: what frameworks written for MindSpeed import and call."""

from pathlib import Path
from typing import Any

import pytest
import torch

from harness.runner import run_on_cpu, run_on_device
from harness.trees import Trees
from harness.worker import Scenario

CHECKS = "features.base.dropin_checks"


@pytest.fixture(scope="module")
def tree(trees: Trees) -> Path:
    return trees.patched("core_v0.16.1", ("base/dropin", "fusions/fused-swiglu"))


def ask(tree: Path, name: str, *arguments: Any) -> Any:
    return run_on_cpu([tree], (f"{CHECKS}:{name}", arguments))[0]


@pytest.mark.parametrize("as_namespace", [False, True])
def test_repatch_takes_options_of_the_build_and_fields_of_megatron(
    tree: Path, as_namespace: bool
) -> None:
    options = {"use_fused_swiglu": True, "use_flash_attn": False, "num_layers": 2}
    assert ask(tree, "call_repatch", options, as_namespace) == ""


def test_repatch_names_what_the_build_lacks_and_wrong_values(tree: Path) -> None:
    options = {"use_flash_attn": True, "optimization_level": 7}
    message = ask(tree, "call_repatch", options, False)
    assert "--use-flash-attn (use_flash_attn=True): attention/flash-attention is not in" in message
    assert "--optimization-level (optimization_level=7): must be one of 0, 1, 2" in message


def test_arguments_come_from_the_command_line_or_are_defaults(tree: Path) -> None:
    flags = ["--use-fused-swiglu"]
    assert ask(tree, "read_args", flags, False)["use_fused_swiglu"] is True
    assert ask(tree, "read_args", flags, True)["use_fused_swiglu"] is False


def test_operators_compute_what_mindspeed_documents(tree: Path) -> None:
    scenarios = [Scenario(f"{CHECKS}:rotate"), Scenario(f"{CHECKS}:merge_attention")]
    rotated, merged = run_on_device(tree, scenarios)[0]
    for mode in (0, 1):
        torch.testing.assert_close(rotated[f"out {mode}"], rotated[f"want {mode}"])
        assert rotated[f"grad {mode}"].abs().sum() > 0
    for name in ("out", "top", "total"):
        torch.testing.assert_close(merged[name], merged[f"want {name}"], rtol=1e-4, atol=1e-5)
