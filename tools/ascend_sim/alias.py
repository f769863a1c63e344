"""CPU aliases of simulated device memory.

The memory of a simulated device is host memory. A DLPack capsule of a device tensor whose device
field is rewritten imports as a CPU tensor on the same bytes, with the same sizes and strides, and
keeps the device tensor alive.
"""

import ctypes
from collections.abc import Callable

import torch

from ascend_sim.loader import Runtime

HOST_TAG = 1
"""DLPack's device type of the CPU, with device index 0."""
DEVICE_TYPE = 12
"""DLPack's device type of an out-of-tree backend (kDLExtDev)."""
SMALL_BYTES = 1 << 16
"""Below this size one memmove is faster than a copy operator."""

_to_capsule: Callable[[torch.Tensor], object] = torch._C._to_dlpack
_from_capsule: Callable[[object], torch.Tensor] = torch._C._from_dlpack
_empty_strided = torch._C._VariableFunctions.empty_strided
_scalar_tensor = torch._C._VariableFunctions.scalar_tensor


def _load_retag() -> Callable[[object, int], int]:
    """Return the C function that rewrites a capsule's device (called with the GIL held)."""
    if Runtime.library is None:
        raise RuntimeError("ascend_sim.install() has not been called")
    function = ctypes.PyDLL(Runtime.library._name).ascend_sim_retag
    function.argtypes, function.restype = [ctypes.py_object, ctypes.c_int64], ctypes.c_int64
    return function


_retag = _load_retag()


def to_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """Return a CPU tensor on the same memory, outside autograd; also of a CPU tensor.

    Args:
        tensor: any strided tensor on the simulated device or the CPU.
    """
    capsule = _to_capsule(tensor)
    if _retag(capsule, HOST_TAG) < 0:
        raise _freed_storage(tensor)
    return _from_capsule(capsule)


def to_cpu_on(tensor: torch.Tensor, tag: int, operator: str) -> tuple[torch.Tensor, int]:
    """Return the alias and the device of a call, having checked that its tensors share one.

    Args:
        tensor: an argument of the operator.
        tag: the device of the arguments before it as DLPack writes it, 0 if there was none.
        operator: name for the error.

    Raises:
        RuntimeError: the tensor is on another device, and is not a CPU scalar.
    """
    try:
        capsule = _to_capsule(tensor)
    except TypeError:
        if isinstance(tensor, int | float | complex):
            return wrap_number(tensor), tag
        raise
    had = _retag(capsule, HOST_TAG)
    if had != tag:
        tag = _settle_device(tensor, had, tag, operator)
    return _from_capsule(capsule), tag


def wrap_number(value: float) -> torch.Tensor:
    """Return the CPU scalar for a number that the dispatcher has made of a scalar's tensor."""
    dtypes = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}
    result: torch.Tensor = _scalar_tensor(value, dtype=dtypes[type(value)], device="cpu")
    return result


def _freed_storage(tensor: torch.Tensor) -> RuntimeError:
    return RuntimeError(
        f"a tensor of shape {tuple(tensor.shape)} on {tensor.device} is used after its storage "
        "was freed"
    )


def _settle_device(tensor: torch.Tensor, had: int, tag: int, operator: str) -> int:
    if had < 0:
        raise _freed_storage(tensor)
    if had == HOST_TAG and tensor.dim() == 0:
        return tag
    if had != HOST_TAG and tag == 0:
        return had
    other = "npu" if tag == 0 else f"npu:{tag >> 32}"
    raise RuntimeError(
        "Expected all tensors to be on the same device, but found at least two devices, "
        f"{tensor.device} and {other}! (when running {operator})"
    )


def to_npu(tensor: torch.Tensor, device: torch.device | int) -> torch.Tensor:
    """Return a new tensor of the device's allocator with the bytes of a CPU tensor.

    Args:
        tensor: CPU tensor; sizes are kept, strides too where the tensor is dense.
        device: the simulated device or its index.
    """
    result: torch.Tensor = _empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=_as_device(device)
    )
    num_bytes = tensor.nbytes
    if num_bytes == 0:
        return result
    if num_bytes <= SMALL_BYTES and tensor.is_contiguous():
        ctypes.memmove(result.data_ptr(), tensor.data_ptr(), num_bytes)
    else:
        to_cpu(result).copy_(tensor)
    return result


_DEVICES: dict[int, torch.device] = {}


def _as_device(device: torch.device | int) -> torch.device:
    if isinstance(device, torch.device):
        return device
    found = _DEVICES.get(device)
    if found is None:
        found = _DEVICES[device] = torch.device("npu", device)
    return found
