"""What runs in a scenario's own process: put one tree on the path, run scenarios of it, answer."""

import importlib
import io
import sys
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from harness.triton_stub import find_unguarded, serve_triton


@dataclass(frozen=True)
class Scenario:
    """A function of named tensors, by name, and its keyword arguments."""

    function: str
    """`module:function`, importable from the tests folder."""
    options: tuple[tuple[str, Any], ...] = ()
    seed: int = 1234


def enter_tree(tree: str, *, lend_triton: bool) -> None:
    """Make `megatron` mean the one of `tree` in this process, which has not imported any.

    Args:
        tree: the folder above `megatron`.
        lend_triton: give the modules that cannot do without Triton a stand-in.
    """
    assert not any(name.split(".")[0] in ("megatron", "mindspeed") for name in sys.modules)
    sys.path.insert(0, tree)
    if lend_triton:
        serve_triton(find_unguarded(Path(tree)))
    if not hasattr(typing, "override"):  # megatron.training takes it from Python 3.12 on
        typing.override = lambda function: function  # type: ignore[attr-defined, unused-ignore]


def run_scenarios(tree: str, scenarios: Sequence[Scenario], sizes: dict[str, int]) -> bytes:
    """Run scenarios one after another in this process, each from its own seed.

    Args:
        tree: the folder above `megatron`.
        scenarios: what to run.
        sizes: keywords of `initialize_model_parallel`; the default process group exists.

    Returns:
        Each scenario's named tensors, on the CPU, in the format of `torch.save`. (Pickling a tensor
        names a function of Megatron's from core 0.17 on, which the test process cannot import.)
    """
    enter_tree(tree, lend_triton=True)
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    parallel_state.initialize_model_parallel(**sizes)
    results = []
    for scenario in scenarios:
        module, _, name = scenario.function.partition(":")
        function = getattr(importlib.import_module(module), name)
        torch.manual_seed(scenario.seed)
        model_parallel_cuda_manual_seed(scenario.seed)
        named = function(**dict(scenario.options))
        results.append({key: value.detach().cpu().clone() for key, value in named.items()})
    buffer = io.BytesIO()
    torch.save(results, buffer)
    return buffer.getvalue()


def call_in_tree(paths: Sequence[str], calls: Sequence[tuple[str, tuple[Any, ...]]]) -> list[Any]:
    """Call each `module:function` in a process whose `sys.path` starts with `paths`."""
    for path in reversed(paths[1:]):
        sys.path.insert(0, path)
    enter_tree(paths[0], lend_triton=False)
    results = []
    for function, arguments in calls:
        module, _, name = function.partition(":")
        results.append(getattr(importlib.import_module(module), name)(*arguments))
    return results
