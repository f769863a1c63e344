"""training/start: scripts start by name from any folder, and nothing asks for nvcc."""

import os
from pathlib import Path
from typing import Any

import pytest

from harness.runner import run_on_cpu
from harness.trees import GIT_VARIABLE, Trees

CHECKS = "features.training.launch_checks"
OVERLAYS = ("training/start",)


@pytest.fixture(scope="module")
def tree(trees: Trees) -> Path:
    return trees.patched("core_v0.17.1", OVERLAYS)


def ask(tree: Path, name: str, *arguments: Any) -> Any:
    return run_on_cpu([tree], (f"{CHECKS}:{name}", arguments))[0]


def test_own_script_runs_with_what_a_launcher_sets(tree: Path, tmp_path: Path) -> None:
    name, arguments, environment = ask(tree, "run_script", str(tmp_path))
    assert (name, arguments) == ("beside", ["--lr", "1"])
    assert environment == {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    }


def test_environment_of_a_launcher_is_kept(tree: Path) -> None:
    assert ask(tree, "keep_launcher_environment") == {
        "RANK": "3",
        "WORLD_SIZE": "8",
        "MASTER_PORT": "1",
        "CUDA_DEVICE_MAX_CONNECTIONS": "4",
    }


def test_core_tree_says_why_it_has_no_script(tree: Path) -> None:
    printed, end = ask(tree, "call_launch", ["pretrain_gpt"])
    assert "--tree full" in end
    assert "own script" in end
    assert printed == ""


def test_device_without_major_version_has_an_architecture(tree: Path) -> None:
    assert ask(tree, "find_arch_version") == 8


@pytest.mark.skipif(GIT_VARIABLE not in os.environ, reason=f"NOT RUN: set {GIT_VARIABLE}")
def test_full_tree_finds_scripts_by_name_and_names_them(trees: Trees) -> None:
    full = trees.patched("core_v0.12.1", OVERLAYS, tree="full")
    where, end = ask(full, "call_launch", ["--where", "pretrain_gpt"])
    assert end == ""
    assert Path(where.strip()) == full / "mindspeed" / "scripts" / "pretrain_gpt.py"
    _, end = ask(full, "call_launch", ["pretrain_gtp"])
    assert "pretrain_gpt, " in end
