"""How operators reach their kernels: several devices, modes, missing kernels, generated code."""

from typing import Any

import pytest
import torch
import torch_npu
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from ascend_sim import alias, codegen
from ascend_sim.errors import NoKernelError

npu: Any = torch_npu.npu


def test_backward_crosses_devices() -> None:
    first = torch.nn.Linear(3, 4).to("npu:1")
    second = torch.nn.Linear(4, 2).to("npu:2")
    x = torch.ones(5, 3, device="npu:1", requires_grad=True)
    second(first(x).relu().to("npu:2")).square().mean().backward()
    assert x.grad is not None
    assert x.grad.device.index == 1
    assert second.weight.grad is not None
    assert second.weight.grad.device.index == 2


def test_random_reference_kernel_draws_from_the_device_of_its_arguments() -> None:
    before = [npu.get_rng_state(f"npu:{i}") for i in range(3)]
    torch.nn.functional.dropout(torch.ones(8, device="npu:2"), 0.5)
    after = [npu.get_rng_state(f"npu:{i}") for i in range(3)]
    changed = [not torch.equal(a, b) for a, b in zip(before, after, strict=True)]
    assert changed == [False, False, True]


def test_fake_tensors_use_shapes_only() -> None:
    base = npu.memory_allocated(0)
    with FakeTensorMode():
        x = torch.empty(1 << 20, 1 << 12, device="npu:0", dtype=torch.bfloat16)
        y = torch_npu.npu_swiglu(x @ x.new_empty(1 << 12, 8))
        assert y.shape == (1 << 20, 4)
        assert y.device == torch.device("npu:0")
    assert npu.memory_allocated(0) == base


def test_dispatch_mode_sees_the_operators_of_the_program_only() -> None:
    class Record(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    seen: list[str] = []
    mode: Any = Record
    x = torch.ones(3, 3, device="npu")
    with mode():
        torch.nn.functional.layer_norm(x + x, (3,))
    assert seen == ["aten.add.Tensor", "aten.native_layer_norm.default"]


@pytest.mark.parametrize("namespace", ["npu", "atb"])
def test_every_operator_without_a_kernel_refuses_by_name(namespace: str) -> None:
    name = {"npu": "npu_ffn", "atb": "_npu_rotary_embedding"}[namespace]
    operator = getattr(getattr(torch.ops, namespace), name).default
    required = [a for a in operator._schema.arguments if not a.has_default_value()]
    x = torch.ones(2, 2, device="npu")
    values = {"Tensor": x, "List[Tensor]": [x], "int": 1, "float": 1.0, "str": "gelu", "bool": True}
    arguments = {a.name: values.get(str(a.type), x) for a in required}
    with pytest.raises(NoKernelError, match=rf"^{namespace}::{name} has no kernel"):
        operator(**arguments)


def test_generated_kernel_follows_its_schema() -> None:
    operator = torch.ops.aten.lerp.Scalar_out
    called: list[tuple[Any, ...]] = []

    def record(*args: Any, **kwargs: Any) -> Tensor:
        called.append((*args, kwargs["out"]))
        result: Tensor = operator(*args, **kwargs)
        return result

    kernel = codegen.make_kernel(operator._schema, record)
    x, y, out = (torch.full((3,), float(v), device="npu:1") for v in (1, 3, 0))
    assert kernel(x, y, 0.25, out=out) is out
    assert out.tolist() == [1.5] * 3
    assert all(t.device.type == "cpu" for t in called[0] if isinstance(t, Tensor))
    assert called[0][0].data_ptr() == x.data_ptr()
    assert kernel(x, y, 0.5, out=x) is x
    assert called[1][0] is called[1][-1]


def test_alias_shares_memory_and_keeps_it_alive() -> None:
    x = torch.arange(12.0, device="npu:1").reshape(3, 4)
    host = alias.to_cpu(x.t()[1:])
    assert host.device.type == "cpu"
    assert host.stride() == (1, 4)
    host.zero_()
    assert x.tolist() == [[0.0, 0, 0, 0], [4.0, 0, 0, 0], [8.0, 0, 0, 0]]
    base = npu.memory_allocated(1)
    del x
    assert npu.memory_allocated(1) == base
    assert host.sum().item() == 0
    del host
    assert npu.memory_allocated(1) < base


def test_copy_to_the_device_keeps_dense_strides() -> None:
    host = torch.arange(6.0).reshape(2, 3).t()
    there = alias.to_npu(host, 2)
    assert there.stride() == host.stride()
    assert there.device.index == 2
    assert torch.equal(there.cpu(), host)
    big = torch.randn(300, 200).t()
    assert torch.equal(alias.to_npu(big, torch.device("npu", 0)).cpu(), big)
    assert alias.to_npu(torch.empty(0, 3), 0).shape == (0, 3)


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.int8, torch.bfloat16, torch.float8_e4m3fn, torch.complex64]
)
def test_alias_serves_every_dtype(dtype: torch.dtype) -> None:
    x = torch.zeros(4, device="npu", dtype=dtype)
    assert alias.to_cpu(x).dtype == dtype
    assert alias.to_cpu(x).data_ptr() == x.data_ptr()
