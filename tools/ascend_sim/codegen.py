"""Writes one Python function per operator schema, which runs the operator on CPU aliases.

No tree is walked at call time: what to alias, what to give back and which arguments are special is
read off the schema once, when the operator is first called. For `add.out` the text is

    def kernel(self, other, *, alpha=_defaults["alpha"], out):
        _tag = 0
        _h_self, _tag = _alias(self, _tag, _name)
        _h_other, _tag = _alias(other, _tag, _name)
        if out is self: _h_out = _h_self
        else: _h_out, _tag = _alias_out(out, _tag, _name)
        try:
            _result = _call(_h_self, _h_other, alpha=alpha, out=_h_out)
        except RuntimeError as _error:
            _check_resize(_error)
            _h_out = _make_fresh(out)
            _result = _call(_h_self, _h_other, alpha=alpha, out=_h_out)
        if _h_out.shape != out.shape: _follow(out, _h_out)
        return out
"""

import keyword
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch_npu

from ascend_sim import alias, rng

_HOST = torch.device("cpu")
_TAKES_NUMBERS = ("add", "sub", "mul", "div", "floor_divide", "true_divide")
"""Operators whose tensor arguments may be Python numbers, in PyTorch's own argument parser."""
_npu: Any = torch_npu.npu
_Schema = Any
"""A torch._C.FunctionSchema; the class has no type stubs."""
_Argument = Any


def make_kernel(
    schema: _Schema,
    call: Callable[..., Any],
    *,
    seeded: bool = False,
    guarded: bool = False,
    host: Sequence[str] = (),
) -> Callable[..., Any]:
    """Return the device kernel of a schema.

    Args:
        schema: the operator's schema.
        call: what computes on the CPU aliases: a CPU operator or a reference kernel.
        seeded: the operator draws random numbers without having a generator argument.
        guarded: the device of the arguments is current while `call` runs.
        host: tensor arguments that may be on the CPU.
    """
    name = name_operator(schema)
    lines = [f"def kernel({_write_parameters(schema.arguments)}):", " _tag = 0"]
    for argument in schema.arguments:
        converted = _write_conversion(argument, schema.arguments)
        if argument.name in host and "List" not in str(argument.type):
            local = _local(argument)
            lines.append(f" if {local} is not None and {local}.is_cpu: _h_{local} = {local}")
            converted = [" else:", *[f" {line}" for line in converted]]
        lines += converted
    device = _write_device(schema.arguments)
    if _has(schema, "generator"):
        lines.append(f" _h_generator = _take_generator({device}, generator)")
    lines += _write_call(schema, device=device, seeded=seeded, guarded=guarded)
    lines.append(f" return {_write_return(schema, device)}")
    scope = {**_HELPERS, "_call": call, "_name": name, "_defaults": _collect_defaults(schema)}
    if name.partition("::")[2].partition(".")[0].rstrip("_") in _TAKES_NUMBERS:
        scope["_number"] = lambda value: value
    exec(compile("\n".join(lines), f"<ascend_sim {name}>", "exec"), scope)
    kernel: Callable[..., Any] = scope["kernel"]
    return kernel


def name_operator(schema: _Schema) -> str:
    """Return `namespace::name.overload`, without the dot where there is no overload."""
    return f"{schema.name}.{schema.overload_name}".rstrip(".")


def _local(argument: _Argument) -> str:
    return f"{argument.name}_" if keyword.iskeyword(argument.name) else str(argument.name)


def _is_written(argument: _Argument) -> bool:
    return argument.alias_info is not None and bool(argument.alias_info.is_write)


def _has(schema: _Schema, name: str) -> bool:
    return any(argument.name == name for argument in schema.arguments)


def _find_outs(schema: _Schema) -> list[str]:
    return [
        _local(argument)
        for argument in schema.arguments
        if _is_written(argument) and argument.kwarg_only and str(argument.type) == "Tensor"
    ]


def _collect_defaults(schema: _Schema) -> dict[str, Any]:
    return {a.name: a.default_value for a in schema.arguments if a.has_default_value()}


def _write_parameters(arguments: Sequence[_Argument]) -> str:
    parts, starred = [], False
    for argument in arguments:
        if argument.kwarg_only and not starred:
            parts.append("*")
            starred = True
        default = f'=_defaults["{argument.name}"]' if argument.has_default_value() else ""
        parts.append(_local(argument) + default)
    return ", ".join(parts)


def _write_conversion(argument: _Argument, arguments: Sequence[_Argument]) -> list[str]:
    """Return the lines that make `_h_<name>`; arguments without one are passed as they are."""
    local, kind = _local(argument), str(argument.type)
    target = f"_h_{local}"
    if kind == "Tensor" and _is_written(argument) and argument.kwarg_only:
        known = [_local(a) for a in arguments if str(a.type) == "Tensor" and not a.kwarg_only]
        if "self" in known:
            return [
                f" if {local} is self: {target} = _h_self",
                f" else: {target}, _tag = _alias_out({local}, _tag, _name)",
            ]
        return [f" {target}, _tag = _alias_out({local}, _tag, _name)"]
    if kind == "Tensor" and argument.name == "other":
        return [  # `x + 1`: the dispatcher turns the tensor of a Python number into a number
            f" if {local}.__class__ in _numbers: {target} = _number({local})",
            f" else: {target}, _tag = _alias({local}, _tag, _name)",
        ]
    if kind == "Tensor":
        return [f" {target}, _tag = _alias({local}, _tag, _name)"]
    if kind == "Optional[Tensor]":
        return [
            f" if {local} is None: {target} = None",
            f" else: {target}, _tag = _alias({local}, _tag, _name)",
        ]
    if "Tensor" in kind:
        free = argument.name == "indices"
        return [f" {target}, _tag = _alias_list({local}, _tag, _name, {free})"]
    return []


def _write_passed(argument: _Argument) -> str:
    """Return how an argument is handed to the CPU operator."""
    local, kind = _local(argument), str(argument.type)
    if "Tensor" in kind or argument.name == "generator":
        value = f"_h_{local}"
    elif argument.name == "device" and "Device" in kind:
        value = "_host"
    elif argument.name == "pin_memory":
        value = "None"
    else:
        value = local
    return f"{argument.name}={value}" if argument.kwarg_only else value


def _write_device(arguments: Sequence[_Argument]) -> str:
    if any(argument.name == "device" and "Device" in str(argument.type) for argument in arguments):
        return "(_tag >> 32 if _tag else _index(device))"
    return "(_tag >> 32 if _tag else _index(None))"


def _write_call(schema: _Schema, *, device: str, seeded: bool, guarded: bool) -> list[str]:
    call = f"_result = _call({', '.join(_write_passed(a) for a in schema.arguments)})"
    if seeded:
        return [f" with _borrow_default({device}):", f"  {call}"]
    if guarded:
        return [f" with _on_device({device}):", f"  {call}"]
    outs = _find_outs(schema)
    if not outs:
        return [f" {call}"]
    lines = [" try:", f"  {call}", " except RuntimeError as _error:", "  _check_resize(_error)"]
    lines += [f"  _h_{out} = _make_fresh({out})" for out in outs]
    lines.append(f"  {call}")
    lines += [f" if _h_{out}.shape != {out}.shape: _follow({out}, _h_{out})" for out in outs]
    return lines


def _write_return(schema: _Schema, device: str) -> str:
    written = {
        name: _local(argument)
        for argument in schema.arguments
        if _is_written(argument)
        for name in argument.alias_info.before_set
    }
    single = len(schema.returns) == 1
    parts = []
    for number, returned in enumerate(schema.returns):
        info = returned.alias_info
        aliased = [written[name] for name in info.before_set if name in written] if info else []
        value = "_result" if single else f"_result[{number}]"
        if aliased:
            parts.append(aliased[0])
        elif "Tensor" not in str(returned.type):
            parts.append(value)
        else:
            parts.append(f"_wrap({value}, {device})")
    if not parts:
        return "None"
    return parts[0] if single else f"({', '.join(parts)},)"


def alias_list(
    tensors: Sequence[torch.Tensor | None] | None, tag: int, operator: str, free: bool
) -> tuple[list[torch.Tensor | None] | None, int]:
    """Return the aliases of a list; where `free`, CPU tensors may stand beside device tensors."""
    if tensors is None:
        return None, tag
    result: list[torch.Tensor | None] = []
    for tensor in tensors:
        if tensor is None or (free and tensor.is_cpu):
            result.append(tensor)
        else:
            host, tag = alias.to_cpu_on(tensor, tag, operator)
            result.append(host)
    return result, tag


def alias_out(tensor: torch.Tensor, tag: int, operator: str) -> tuple[torch.Tensor, int]:
    """Return the alias of an `out=` tensor; an empty one gets a CPU tensor that can grow."""
    host, tag = alias.to_cpu_on(tensor, tag, operator)
    return (host if host.numel() else make_fresh(tensor)), tag


def make_fresh(tensor: torch.Tensor) -> torch.Tensor:
    """Return an empty CPU tensor of the same dtype, which a kernel may resize."""
    result: torch.Tensor = torch._C._VariableFunctions.empty(0, dtype=tensor.dtype, device=_HOST)
    return result


def check_resize(error: RuntimeError) -> None:
    """Raise the error again unless a kernel only failed to grow an alias."""
    if "not resizable" not in str(error):
        raise error


def follow_resize(tensor: torch.Tensor, host: torch.Tensor) -> None:
    """Give a device tensor the size, and if need be the contents, that its CPU side got."""
    tensor.resize_(host.shape)
    if host.numel() and host.data_ptr() != tensor.data_ptr():
        alias.to_cpu(tensor).copy_(host)


def wrap_result(value: Any, index: int) -> Any:
    """Return a CPU result, or a list of them, in the memory of device `index`."""
    if isinstance(value, torch.Tensor):
        return alias.to_npu(value, index)
    if isinstance(value, list | tuple):
        return [wrap_result(item, index) for item in value]
    return value


def find_index(device: torch.device | None) -> int:
    """Return the index of a device argument, the current device where it says none."""
    if device is not None and device.index is not None:
        return device.index
    return int(_npu.current_device())


_NOTHING: AbstractContextManager[Any] = nullcontext()


def on_device(index: int) -> AbstractContextManager[Any]:
    """Return a context in which device `index` is current."""
    return _NOTHING if _npu.current_device() == index else _npu.device(index)


_HELPERS: dict[str, Any] = {
    "_alias": alias.to_cpu_on,
    "_alias_list": alias_list,
    "_alias_out": alias_out,
    "_make_fresh": make_fresh,
    "_check_resize": check_resize,
    "_follow": follow_resize,
    "_wrap": wrap_result,
    "_index": find_index,
    "_take_generator": rng.take_generator,
    "_borrow_default": rng.borrow_default,
    "_on_device": on_device,
    "_host": _HOST,
    "_number": alias.wrap_number,
    "_numbers": (int, float, bool, complex),
}
