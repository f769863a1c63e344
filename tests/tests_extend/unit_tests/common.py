"""`DistributedTest`: each test method of a class runs on `world_size` ranks, with process groups.

One rank is this process, so that breakpoints and monkeypatching work. More ranks are forked from a
process that has imported torch_npu once; on an NPU host they use its devices.
"""

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ascend_sim import ranks

TOL_MAPPING: dict[torch.dtype, dict[str, float]] = {
    torch.float32: {"atol": 1e-4, "rtol": 1e-4},
    torch.float16: {"atol": 1e-3, "rtol": 1e-3},
    torch.bfloat16: {"atol": 5e-3, "rtol": 5e-3},
}
"""Tolerances by dtype, as MindSpeed's tests have them."""

_PRELOAD = (f"{__name__}:prepare_device",)


class DistributedTest:
    """Base class of tests that want a process group.

    Attributes:
        world_size: number of ranks.
        init_distributed: make the default process group before the test.
        exec_timeout: seconds, after which a test on several ranks fails with every rank's stack.
    """

    world_size = 2
    init_distributed = True
    exec_timeout = 300

    @pytest.fixture(autouse=True)
    def _provide_ranks(
        self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[None]:
        if self.world_size > 1:
            names = request.node._fixtureinfo.argnames
            arguments = {name: request.getfixturevalue(name) for name in names}
            monkeypatch.setattr(
                request.node, "runtest", lambda: self._run_on_ranks(request, arguments)
            )
            yield
            return
        prepare_device()
        if self.init_distributed:
            _start_alone(monkeypatch)
        yield
        _end_alone()

    def _run_on_ranks(self, request: pytest.FixtureRequest, arguments: dict[str, Any]) -> None:
        where = (str(request.path), type(self).__qualname__, request.node.originalname)
        ranks.server(preload=_PRELOAD, env={"TORCHDYNAMO_DISABLE": "1"}).run(
            f"{__name__}:run_method",
            *where,
            arguments,
            world_size=self.world_size,
            backend="hccl" if self.init_distributed else None,
            timeout_s=self.exec_timeout,
        )


def prepare_device() -> None:
    """Load the device, real or simulated, and let `torch.cuda` mean it."""
    import warnings

    ranks.prepare_device()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it lists every name that it replaces
        from torch_npu.contrib import transfer_to_npu  # noqa: F401


def run_method(path: str, class_name: str, method: str, arguments: dict[str, Any]) -> None:
    """What a rank does: import the test file and call one method of one class."""
    name = Path(path).stem
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        sys.path.insert(0, str(Path(path).parent))
        spec.loader.exec_module(module)
    getattr(getattr(sys.modules[name], class_name)(), method)(**arguments)


def _start_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    for key, value in place.items():
        monkeypatch.setenv(key, os.environ.get(key, value))
    torch.npu.set_device(0)  # type: ignore[attr-defined, unused-ignore]
    store = torch.distributed.HashStore()  # type: ignore[attr-defined]
    torch.distributed.init_process_group("hccl", store=store, rank=0, world_size=1)


def _end_alone() -> None:
    if "megatron.core.parallel_state" in sys.modules:
        sys.modules["megatron.core.parallel_state"].destroy_model_parallel()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
