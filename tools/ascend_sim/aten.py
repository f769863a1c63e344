"""The aten kernels that a schema alone cannot write."""

from collections.abc import Callable
from typing import Any

import torch

from ascend_sim import alias

KERNELS: dict[str, Callable[..., Any]] = {}
"""aten operator with overload to its device kernel, which gets device tensors."""


_factories = torch._C._VariableFunctions
"""The factories themselves: transfer_to_npu and function modes replace those of `torch`."""


def register(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function as the device kernel of `aten::<name>`."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        KERNELS[name] = function
        return function

    return add


def _resolve(tensor: torch.Tensor) -> torch.Tensor:
    """Return the CPU alias with the conjugate and negative bits that copies must honour."""
    host = alias.to_cpu(tensor)
    if tensor.is_conj():
        host = host.conj()
    return host._neg_view() if tensor.is_neg() else host


@register("copy_")
def copy_(self: torch.Tensor, src: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """Copy between any two of host and devices; both sides are host memory."""
    _resolve(self).copy_(_resolve(src))
    return self


@register("_copy_from")
def _copy_from(self: torch.Tensor, dst: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    _resolve(dst).copy_(_resolve(self))
    return dst


@register("_copy_from_and_resize")
def _copy_from_and_resize(self: torch.Tensor, dst: torch.Tensor) -> torch.Tensor:
    """What torch_npu's fallback to the CPU writes `out=` results with."""
    dst.resize_(self.shape)
    _resolve(dst).copy_(_resolve(self))
    return dst


@register("_to_copy")
def _to_copy(
    self: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    """Copy to another dtype, device or memory format; `self` is on either side."""
    result: torch.Tensor = _factories.empty_like(
        self,
        dtype=dtype,
        layout=layout,
        device=device,
        pin_memory=bool(pin_memory),
        memory_format=memory_format or torch.preserve_format,
    )
    _resolve(result).copy_(_resolve(self))
    return result


@register("full")
def full(
    size: list[int],
    fill_value: complex,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> torch.Tensor:
    """Allocate on the device and fill; the dtype follows the value where none is given."""
    if dtype is None:
        kind = type(fill_value)
        chosen = {bool: torch.bool, int: torch.int64, complex: torch.complex64}
        dtype = chosen.get(kind) or torch.get_default_dtype()
    result: torch.Tensor = _factories.empty(size, dtype=dtype, device=device)
    return result.fill_(fill_value)


@register("ones")
def ones(
    size: list[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> torch.Tensor:
    """Allocate on the device and fill with ones."""
    result: torch.Tensor = _factories.empty(
        size, dtype=dtype or torch.get_default_dtype(), device=device
    )
    return result.fill_(1)


@register("convolution_overrideable")
def convolution_overrideable(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
) -> torch.Tensor:
    """What `convolution` calls for an out-of-tree device."""
    hosts = [None if t is None else alias.to_cpu(t) for t in (input, weight, bias)]
    result = torch.ops.aten.convolution.default(
        *hosts, stride, padding, dilation, transposed, output_padding, groups
    )
    return alias.to_npu(result, input.device)


@register("convolution_backward_overrideable")
def convolution_backward_overrideable(
    grad_output: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
    output_mask: list[bool],
) -> tuple[torch.Tensor | None, ...]:
    """What `convolution_backward` calls for an out-of-tree device."""
    channels = weight.shape[1] * groups if transposed else weight.shape[0]
    hosts = [alias.to_cpu(t) for t in (grad_output, input, weight)]
    grads = torch.ops.aten.convolution_backward.default(
        *hosts,
        [channels],
        stride,
        padding,
        dilation,
        transposed,
        output_padding,
        groups,
        output_mask,
    )
    return tuple(None if g is None else alias.to_npu(g, input.device) for g in grads)
