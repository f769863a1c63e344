"""The reference kernels of `npu::` operators, by operator name.

A kernel is a plain function over CPU tensors (aliases of simulated device memory) with the
parameters of the operator's schema. It returns new CPU tensors, or changes the arguments that the
schema marks as written, and knows nothing of devices: the dispatcher wraps it. Autograd formulas
and meta functions are torch_npu's own.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Kernel:
    """A reference kernel and the document it follows."""

    name: str
    function: Callable[..., Any]
    document: str
    host: tuple[str, ...] = ()
    """Tensor arguments that the device wants on the CPU, such as sequence lengths."""


KERNELS: dict[str, Kernel] = {}
"""Operator name with overload (`npu_swiglu`, `npu_format_cast.Tensor`) to its kernel."""


def kernel(name: str, *, document: str, host: tuple[str, ...] = ()) -> Callable[[_F], _F]:
    """Register the decorated function as the reference kernel of `npu::<name>`.

    Args:
        name: operator name without namespace, with `.overload` where it has one.
        document: the page the kernel follows, as `ops` prints it.
        host: tensor arguments that the device wants on the CPU.
    """

    def register(function: _F) -> _F:
        if name in KERNELS:
            raise ValueError(f"npu::{name} has two reference kernels")
        KERNELS[name] = Kernel(name, function, document, host)
        return function

    return register
