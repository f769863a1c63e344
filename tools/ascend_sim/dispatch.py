"""Registers what runs on the simulated device, in place of torch_npu's own kernels.

Four kinds, all under the PrivateUse1 dispatch key:

- torch_npu's C++ kernels that only handle metadata or copy bytes stay (views, empty, resize_,
  item);
- operators that PyTorch composes of others fall through to that composition. A structured operator
  such as `add` then allocates its result on the device and calls `add.out`, all in C++;
- the remaining aten operators get a generated kernel over CPU aliases (codegen.py), or one of
  aten.py;
- `npu::` and the other Ascend namespaces get the reference kernels of registry.KERNELS. What has
  none refuses.
"""

import importlib
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ascend_sim.codegen import make_kernel
from ascend_sim.errors import NoKernelError
from ascend_sim.registry import KERNELS, Kernel

DEVICE_KEY = "PrivateUse1"
_LIBRARIES: list[torch.library.Library] = []

KEPT = frozenset(
    {
        "_fused_sdp_choice",
        "_lazy_clone",
        "_local_scalar_dense",
        "_pin_memory",
        "_reshape_alias",
        "as_strided",
        "as_strided_",
        "detach_",
        "empty.memory_format",
        "empty_strided",
        "is_pinned",
        "record_stream",
        "resize_",
        "resize_as_",
        "set_",
        "set_.source_Storage",
        "set_.source_Storage_storage_offset",
        "set_.source_Tensor",
        "squeeze_",
        "squeeze_.dim",
        "t_",
        "transpose_",
        "unsqueeze_",
        "view",
    }
)
"""aten operators whose torch_npu kernel needs no chip."""

KEPT_ASCEND = frozenset(
    {
        "_npu_storage_resize",
        "empty_with_format",
        "empty_with_swapped_memory",
        "get_npu_format",
        "get_storage_size",
        "npu_change_data_ptr",
        "npu_format_cast.Tensor",
        "npu_format_cast",  # calls _npu_format_cast, which has a kernel and the gradient
        "unsafe_empty_with_format",
    }
)
"""`npu::` operators whose torch_npu kernel needs no chip."""

WHOLE = frozenset({"mse_loss", "smooth_l1_loss"})
"""Structured operators whose composition warns: their `out=` form resizes before it reduces."""

ASCEND_NAMESPACES = ("npu", "atb", "npu_custom_dist")


def register() -> None:
    """Register every kernel; a second call does nothing."""
    if _LIBRARIES:
        return
    names = torch._C._dispatch_get_all_op_names()
    with_kernel = [
        n for n in names if torch._C._dispatch_has_kernel_for_dispatch_key(n, DEVICE_KEY)
    ]
    _register_aten([name[6:] for name in with_kernel if name.startswith("aten::")])
    _register_reference_kernels(with_kernel)


def _open_library(namespace: str) -> torch.library.Library:
    library = torch.library.Library(namespace, "IMPL")
    _LIBRARIES.append(library)
    return library


def _find_composites() -> set[str]:
    """Return the operators that PyTorch can compose of others, without `aten::`."""
    keys = (
        "CompositeExplicitAutogradNonFunctional",
        "CompositeExplicitAutograd",
        "CompositeImplicitAutograd",
    )
    return set().union(*map(_list_registered, keys))


def _list_registered(key: str) -> set[str]:
    """Return the aten operators with a kernel under a dispatch key, without `aten::`."""
    names = torch._C._dispatch_get_registrations_for_dispatch_key(key)
    return {name[6:] for name in names if name.startswith("aten::")}


def _list_overloads(namespace: str) -> dict[str, Any]:
    """Return the schemas of a namespace by `name.overload`."""
    schemas = {}
    for schema in torch._C._jit_get_all_schemas():
        if schema.name.startswith(f"{namespace}::"):
            name = schema.name.partition("::")[2]
            schemas[f"{name}.{schema.overload_name}".rstrip(".")] = schema
    return schemas


def _register_aten(supported: list[str]) -> None:
    from ascend_sim import aten, aten_composite

    importlib.import_module("ascend_sim.aten_backward")  # adds to aten.KERNELS
    library, composites, schemas = (
        _open_library("aten"),
        _find_composites(),
        _list_overloads("aten"),
    )
    # Where the CPU has a kernel beside the composition (layer_norm), one call beats several.
    own = _list_registered("CPU") & _list_registered("CompositeExplicitAutograd")
    for name in _with_out_forms(supported, schemas, composites):
        schema = schemas.get(name)
        if schema is None or name in KEPT:
            continue
        written = aten.KERNELS.get(name)
        if written is not None:
            _implement(library, name, written)
        elif _is_view(schema):
            continue
        elif (
            name in composites - own and not _is_better_whole(name) and not _selects_backend(schema)
        ):
            _implement(library, name, torch.library.fallthrough_kernel)
        else:
            _implement(library, name, _LazyKernel("aten", name))
    for name in aten.KERNELS.keys() - set(supported):
        _implement(library, name, aten.KERNELS[name])
    for name, composition in aten_composite.KERNELS.items():
        for key in (DEVICE_KEY, f"Autograd{DEVICE_KEY}"):
            library.impl(name, composition, key, allow_override=True)


def _with_out_forms(
    supported: list[str], schemas: dict[str, Any], composites: set[str]
) -> Iterable[str]:
    """Yield the supported operators and the `out=` forms into which PyTorch composes them."""
    yield from supported
    known, bases = set(supported), {name.partition(".")[0].rstrip("_") for name in supported}
    for name, schema in schemas.items():
        base = name.partition(".")[0]
        if name in known or name in composites or base not in bases:
            continue
        if any(a.kwarg_only and a.alias_info and a.alias_info.is_write for a in schema.arguments):
            yield name


def _is_view(schema: Any) -> bool:
    return any(a.alias_info is not None and not a.alias_info.is_write for a in schema.arguments)


def _selects_backend(schema: Any) -> bool:
    """Return whether the device argument chooses the kernel: such calls skip no fallthrough."""
    base = schema.name.partition("::")[2]
    has_device = any(argument.name == "device" for argument in schema.arguments)
    return has_device and not (base.endswith("_like") or base.startswith("new_"))


def _is_better_whole(name: str) -> bool:
    """Return whether one CPU call beats the composition, as over a list of tensors."""
    base = name.partition(".")[0]
    return base in WHOLE or (base.startswith("_foreach_") and base.endswith("_"))


def _implement(library: torch.library.Library, name: str, kernel: Callable[..., Any]) -> None:
    library.impl(name, kernel, DEVICE_KEY, allow_override=True)


class _LazyKernel:
    """A kernel that is written when it is first called: few of the two thousand ever are."""

    __slots__ = ("_kernel", "_name", "_namespace")

    def __init__(self, namespace: str, name: str) -> None:
        self._namespace, self._name = namespace, name
        self._kernel: Callable[..., Any] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        kernel = self._kernel
        if kernel is None:
            kernel = self._kernel = self._make()
        return kernel(*args, **kwargs)

    def _make(self) -> Callable[..., Any]:
        base, _, overload = self._name.partition(".")
        operator = getattr(
            getattr(getattr(torch.ops, self._namespace), base), overload or "default"
        )
        names = [argument.name for argument in operator._schema.arguments]
        seeded = torch.Tag.nondeterministic_seeded in operator.tags and "generator" not in names
        if not torch._C._dispatch_has_computed_kernel_for_dispatch_key(operator.name(), "CPU"):
            return make_refusal(operator.name())
        return make_kernel(operator._schema, operator._op, seeded=seeded)


def make_refusal(operator: str) -> Callable[..., Any]:
    """Return a kernel that raises NoKernelError for any arguments."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise NoKernelError(operator)

    return refuse


def _register_reference_kernels(with_kernel: list[str]) -> None:
    from ascend_sim import formats

    importlib.import_module("ascend_sim.kernels")
    importlib.import_module("ascend_sim.formula_kernels")
    for namespace in ASCEND_NAMESPACES:
        library, schemas = _open_library(namespace), _list_overloads(namespace)
        for full_name in with_kernel:
            owner, _, name = full_name.partition("::")
            if owner != namespace or name not in schemas or name in KEPT_ASCEND or name in KERNELS:
                continue
            _implement(library, name, make_refusal(full_name))
        if namespace == "npu":
            for name, function in formats.KERNELS.items():
                _implement(library, name, function)
            for name, kernel in KERNELS.items():
                if name in formats.KERNELS:
                    continue
                if name not in schemas:
                    raise ValueError(f"npu::{name} has a reference kernel but no schema")
                _implement(library, name, serve(schemas[name], kernel))


def serve(schema: Any, kernel: Kernel) -> Callable[..., Any]:
    """Return the device kernel of a reference kernel."""
    return make_kernel(schema, kernel.function, guarded=True, host=kernel.host)
