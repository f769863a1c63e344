"""The whole registry against the running torch_npu: schemas, lists, names, documents."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import ascend_sim
from ascend_sim.contract.schemas import Schema, release
from ascend_sim.ops import Served, list_operators
from ascend_sim.registry import KERNELS

ascend_sim.install()

RUNNING = "2.13.0"


def running_schemas() -> dict[str, torch._C.FunctionSchema]:
    return {
        f"{schema.name[5:]}.{schema.overload_name}".rstrip("."): schema
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith("npu::")
    }


def listed_schemas() -> dict[str, Schema]:
    return {s.key: s for overloads in release(RUNNING).schemas.values() for s in overloads}


def test_the_list_is_what_the_running_torch_npu_registers() -> None:
    running, listed = running_schemas(), listed_schemas()
    without_text = {name for name in running if name not in listed}

    assert set(listed) <= set(running)
    # Registered from C++ function types: no schema text in the libraries to read.
    assert {name.partition(".")[0] for name in without_text} <= {
        "print_npugraph_tensor",
        "save_npugraph_tensor",
        "set_op_timeout_ms",
        "super_kernel_scope_begin",
        "super_kernel_scope_end",
    }


def differences(listed: Schema, running: torch._C.FunctionSchema) -> list[object]:
    """What a list says otherwise than the operator: arguments, defaults, None, outputs."""
    said = [(a.name, a.kwarg_only, a.default is not None, a.optional) for a in listed.arguments]
    real = [
        (a.name, a.kwarg_only, a.has_default_value(), str(a.type).startswith("Optional["))
        for a in running.arguments
    ]
    if len(listed.returns) != len(running.returns):
        return [listed.returns, running.returns]
    return [pair for pair in zip(said, real, strict=True) if pair[0] != pair[1]]


def test_each_listed_schema_is_the_running_one() -> None:
    running = running_schemas()
    found = {name: differences(one, running[name]) for name, one in listed_schemas().items()}

    assert len(found) > 400
    assert {name: found[name] for name in found if found[name]} == {}


def test_listed_device_names_are_the_running_ones() -> None:
    npu = torch.get_device_module("npu")
    names = release(RUNNING).names
    # First use of a device adds torch_npu's autograd node classes to the module.
    public = [name for name in dir(npu) if not re.search(r"^_|Backward\d*$", name)]

    assert [name for name in public if f"torch_npu.npu.{name}" not in names] == []


def test_every_operator_is_served_or_refused_and_none_is_forgotten() -> None:
    operators = {operator.name: operator for operator in list_operators()}

    assert set(operators) == set(running_schemas())
    assert set(KERNELS) <= set(operators)
    for name, kernel in KERNELS.items():
        assert operators[name].served is Served.REFERENCE
        assert operators[name].document == kernel.document != ""


def outputs_of(result: object) -> list[torch.Tensor]:
    items = result if isinstance(result, tuple | list) else [result]
    return [item for item in items if isinstance(item, torch.Tensor)]


def try_on_device(operator: Callable[..., object], x: torch.Tensor) -> list[torch.Tensor] | str:
    """The outputs, or the message of the refusal."""
    try:
        return outputs_of(operator(x.to("npu")))
    except (ValueError, RuntimeError) as refused:
        return str(refused)


ONE_TENSOR = sorted(
    name
    for name, schema in running_schemas().items()
    if name in KERNELS
    and torch._C._dispatch_has_kernel_for_dispatch_key(f"npu::{name}", "Meta")
    and sum(not a.has_default_value() for a in schema.arguments) == 1
    and str(schema.arguments[0].type) == "Tensor"
)
"""Kernels that need one tensor only: no case has to be written to try them on anything."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(2, 8), (4, 16, 32)])
@pytest.mark.parametrize("name", ONE_TENSOR)
def test_one_tensor_kernels_give_what_their_meta_functions_say(
    name: str, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    base, _, overload = name.partition(".")
    operator = getattr(getattr(torch.ops.npu, base), overload or "default")
    source = torch.rand(shape).to(dtype)
    found = try_on_device(operator, source)
    if isinstance(found, str):
        assert base in found  # a rule of its document, with the operator's name
        return
    wanted = outputs_of(operator(source.to("meta")))

    assert [(t.shape, t.dtype) for t in found] == [(t.shape, t.dtype) for t in wanted]
    assert all(t.device.type == "npu" for t in found)


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ascend_sim", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=Path(ascend_sim.__file__).parents[1],
    )


def test_the_commands_list_operators_and_check_calls(tmp_path: Path) -> None:
    listed = command("ops", "--json")
    assert listed.returncode == 0, listed.stderr
    by_name = {operator["name"]: operator for operator in json.loads(listed.stdout)}
    assert by_name["npu_swiglu"]["served"] == "reference"

    (tmp_path / "feature.py").write_text("import torch_npu\ntorch_npu.npu_swiglu()\n")
    checked = command("check-calls", "--version", ">=2.7.1", "--json", str(tmp_path))
    assert checked.returncode == 1, checked.stderr
    (finding,) = json.loads(checked.stdout)
    assert finding["line"] == 2
