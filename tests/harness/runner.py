"""The test's side: hand scenarios to processes on the simulated device, keep what they answer."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ascend_sim import ranks
from harness.worker import Scenario, call_in_tree, run_scenarios

Named = dict[str, torch.Tensor]

# Imported once, before processes are forked from it. Megatron is not among them: each process
# imports the one of its own tree.
_ON_DEVICE = ("harness.device:prepare",)
_ON_CPU = ("torch", "numpy")
_ENVIRONMENT = {"TORCHDYNAMO_DISABLE": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}


def run_on_device(
    tree: Path,
    scenarios: Sequence[Scenario],
    *,
    world_size: int = 1,
    sizes: dict[str, int] | None = None,
    timeout_s: float = 240,
) -> list[list[Named]]:
    """Run scenarios of one tree on the simulated device, or the real one; a new process a rank.

    Args:
        tree: the folder above `megatron`, pristine or patched.
        scenarios: run in order, in the same process; imports are paid once.
        world_size: number of ranks.
        sizes: keywords of `initialize_model_parallel`.
        timeout_s: for all of them.

    Returns:
        For each rank, each scenario's named tensors.

    Raises:
        ranks.RankError: one of them raised, with its traceback.
    """
    server = ranks.server(preload=_ON_DEVICE, env=_ENVIRONMENT)
    answers = server.run(
        run_scenarios,
        str(tree),
        list(scenarios),
        dict(sizes or {}),
        world_size=world_size,
        timeout_s=timeout_s,
    )
    return [torch.load(io.BytesIO(answer), weights_only=True) for answer in answers]


def run_on_cpu(
    paths: Sequence[Path],
    *calls: tuple[str, tuple[Any, ...]],
    env: dict[str, str] | None = None,
    timeout_s: float = 120,
) -> list[Any]:
    """Make calls in a fresh process without an NPU and without torch_npu; torch is imported.

    Args:
        paths: come first on `sys.path`, in this order.
        calls: `module:function` and arguments, called in order in the same process; arguments and
            results are pickled.
        env: more environment variables. Each different set costs a server of its own.
        timeout_s: for all calls.
    """
    server = ranks.server(preload=_ON_CPU, env={**_ENVIRONMENT, **(env or {})})
    strings = [str(path) for path in paths]
    answers = server.run(
        call_in_tree, strings, calls, world_size=1, backend=None, timeout_s=timeout_s
    )
    found: list[Any] = answers[0]
    return found
