"""A jit fuser that decides when a function is called, not when it is decorated.

Megatron decorates about forty functions while its modules are imported; whether they may be
compiled is known later, from `--disable-jit-fuser` or from the device. Here a decorated function
stays as it was written until it runs, and asks then.
"""

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

Function = Callable[..., Any]

_allowed = True


def fuse_late(fuser: Callable[[Function], Function]) -> Callable[[Function], Function]:
    """A decorator that applies `fuser` at the first call for which fusing is allowed.

    Making one allows fusing. Each call looks again, so `stop_fusing` also reaches functions that
    have been decorated, or fused, before.

    Args:
        fuser: what upstream would decorate with, `torch.compile` as a rule.
    """
    global _allowed
    _allowed = True

    def decorate(function: Function) -> Function:
        fused: Function | None = None

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal fused
            # Inside somebody's compilation the body is inlined, as torch.compile's own would be.
            if not _allowed or torch.compiler.is_compiling():
                return function(*args, **kwargs)
            if fused is None:
                fused = fuser(function) if can_compile() else function
            return fused(*args, **kwargs)

        return call

    return decorate


def stop_fusing() -> None:
    """Run every decorated function as it was written, from now on."""
    global _allowed
    _allowed = False


def can_compile() -> bool:
    """Whether `torch.compile` can work in this process.

    Inductor needs Triton to generate code for an NPU. Where `transfer_to_npu` is in force it
    reports that there is none, and the first call of a compiled function raises
    BackendCompilerFailed.
    """
    if "torch_npu" not in sys.modules:
        return True
    from torch.utils._triton import has_triton

    return bool(has_triton())
