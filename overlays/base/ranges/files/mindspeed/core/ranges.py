"""Profiler ranges: NVTX as upstream has it, mstx on an NPU.

`transfer_to_npu` leaves `torch.cuda.nvtx` alone, and a torch without CUDA raises at every range.
mstx is Ascend's counterpart; outside of a profiler it does nothing.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class _Ranges:
    """`torch.cuda.nvtx`, as far as Megatron uses it."""

    def range_push(self, message: str) -> Any:
        """Open a range inside the current one."""
        return _marker().range_push(message)

    def range_pop(self) -> Any:
        """Close the innermost range."""
        return _marker().range_pop()

    @contextmanager
    def range(self, message: str, *args: Any, **kwargs: Any) -> Iterator[None]:
        """A range around a block; `message` is formatted with the other arguments."""
        self.range_push(message.format(*args, **kwargs))
        try:
            yield
        finally:
            self.range_pop()


def _marker() -> Any:
    torch_npu = sys.modules.get("torch_npu")
    return torch.cuda.nvtx if torch_npu is None else torch_npu.npu.mstx


nvtx = _Ranges()
