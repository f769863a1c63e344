"""What gloo is handed for a device tensor: bytes to copy, or numbers to reduce."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ascend_sim.alias import to_cpu

_c10d: Any = torch._C._distributed_c10d

Tensors = Sequence[torch.Tensor]

_Op = _c10d.ReduceOp.RedOpType
_REDUCED = {torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.uint8}
_REDUCED |= {torch.int32, torch.int64}
_WIDENED = {torch.int16: torch.int32}


@dataclass(frozen=True)
class Reduction:
    """What gloo reduces in place for a tensor, with which operation, and what follows."""

    carrier: torch.Tensor
    op: Any
    finish: Callable[[], None]


def make_device() -> Any:
    """Gloo's network device: this machine only, unless GLOO_SOCKET_IFNAME names another.

    Connections are made when two ranks first talk: a program makes dozens of groups and uses few.
    """
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "")
    if interface:
        return _c10d.ProcessGroupGloo.create_device(interface=interface, lazy_init=True)
    return _c10d.ProcessGroupGloo.create_device(hostname="127.0.0.1", lazy_init=True)


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """The elements of a dense tensor in order of memory, as a 1-D CPU tensor on the same bytes.

    Raises:
        ValueError: the tensor has holes or overlaps, which HCCL refuses.
    """
    alias = to_cpu(tensor)
    if alias.is_contiguous():
        return alias.view(-1)
    if not _is_dense(alias):
        raise ValueError(
            f"Tensors must be non-overlapping and dense; this one has shape {tuple(tensor.shape)}"
            f" and strides {tensor.stride()}"
        )
    return alias.as_strided((alias.numel(),), (1,))


def _is_dense(tensor: torch.Tensor) -> bool:
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def raw(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a dense tensor, as a 1-D uint8 CPU tensor on the same memory."""
    return dense(tensor).view(torch.uint8)


def reduction(source: torch.Tensor, op: Any, *, size: int, copy: bool = False) -> Reduction:
    """Prepare the reduction of a `dense` tensor over `size` ranks.

    Args:
        source: 1-D CPU tensor that holds the result once `finish` has run.
        op: SUM, AVG (a SUM and a division in the tensor's type), PRODUCT, MIN, MAX or bitwise.
        size: ranks in the group.
        copy: reduce a copy, as gloo uses the buffers of all ranks.

    Raises:
        RuntimeError: a type that HCCL does not reduce, float64 among them.
    """
    kind = getattr(op, "op", op)
    carrier = _number_carrier(source, kind)
    if source.dtype == torch.bool:
        kind = {_Op.SUM: _Op.MAX, _Op.AVG: _Op.MAX, _Op.PRODUCT: _Op.MIN}.get(kind, kind)
    if copy and carrier.data_ptr() == source.data_ptr():
        carrier = carrier.clone()
    average = kind == _Op.AVG

    def finish() -> None:
        if average:
            exact = carrier.is_floating_point()
            carrier.div_(size, rounding_mode=None if exact else "trunc")
        if carrier.data_ptr() != source.data_ptr():
            source.copy_(_like(carrier, source))

    return Reduction(carrier, _c10d.ReduceOp(_Op.SUM if average else kind), finish)


def _number_carrier(source: torch.Tensor, kind: Any) -> torch.Tensor:
    if source.dtype == torch.complex64 and kind in (_Op.SUM, _Op.AVG):
        return torch.view_as_real(source).view(-1)
    if source.dtype == torch.bool:
        return source.view(torch.uint8)
    if source.dtype in _WIDENED:
        return source.to(_WIDENED[source.dtype])
    if source.dtype in _REDUCED:
        return source
    raise RuntimeError(f"HCCL reductions: Unsupported data type {source.dtype} with {kind.name}")


def _like(carrier: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    if source.is_complex():
        return torch.view_as_complex(carrier.view(-1, 2))
    if source.dtype == torch.bool:
        return carrier.view(torch.bool)
    return carrier
