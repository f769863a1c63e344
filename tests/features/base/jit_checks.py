"""What `test_jit` asks a tree about its jit fusers."""

import importlib
import os
from typing import Any

import torch

_FUSED = "megatron.core.fusions.fused_bias_gelu"  # decorated on every release


def count_compilations() -> dict[str, int]:
    """How often `torch.compile` is called by importing, calling, and calling once disabled.

    `enabled again` and `disabled` are absent where upstream has no `disable_jit_fuser`.
    """
    calls: list[Any] = []

    def compile_eagerly(function: Any) -> Any:
        calls.append(function)
        return lambda *args: function(*args)

    torch.compile = compile_eagerly  # type: ignore[assignment]
    counts = {}
    functions = importlib.import_module(_FUSED)
    jit = importlib.import_module("megatron.core.jit")
    bias, values = torch.ones(4), torch.arange(8.0).reshape(2, 4)

    def count_call(function: Any) -> int:
        before = len(calls)
        function(bias, values)
        return len(calls) - before

    counts["import"] = sum(f.__module__ == _FUSED for f in calls)
    if hasattr(jit, "disable_jit_fuser"):
        jit.disable_jit_fuser()
        counts["disabled"] = count_call(functions.bias_gelu)
        jit.enable_jit_fuser()
        counts["enabled again"] = count_call(functions.bias_gelu)
    else:
        counts["call"] = count_call(functions.bias_gelu)
    counts["second call"] = count_call(functions.bias_gelu)
    return counts


def _switch_on_dynamo() -> None:
    """Undo what the harness sets for every other scenario."""
    import torch._dynamo

    os.environ.pop("TORCHDYNAMO_DISABLE", None)
    torch._dynamo.config.disable = False


def describe_fused() -> dict[str, Any]:
    """How a fused function and method look from outside."""
    from megatron.core.jit import jit_fuser

    class Layer:
        @jit_fuser  # type: ignore[untyped-decorator]
        def scale(self, values: torch.Tensor, *, by: float = 2.0) -> torch.Tensor:
            """Multiply."""
            return values * by

    scaled: torch.Tensor = Layer().scale(torch.ones(2), by=3.0)
    name, text = Layer.scale.__qualname__.rpartition(".")[2], Layer.scale.__doc__
    return {"method": scaled.tolist(), "name": name, "doc": text}


def compile_around_fused() -> bool:
    """Whether a fused function inside somebody's whole-graph compilation is part of its graph."""
    from megatron.core.jit import jit_fuser

    _switch_on_dynamo()
    inner = jit_fuser(lambda x: x * 2 + 1)
    outer = torch.compile(lambda x: inner(x).sum(), fullgraph=True, backend="eager")
    return bool(outer(torch.ones(3)) == 9)


def compile_on_device() -> dict[str, torch.Tensor]:
    """A scenario: a fused function, forward and backward, with Dynamo switched on."""
    from megatron.core.jit import jit_fuser

    _switch_on_dynamo()
    values = torch.linspace(-2, 2, 6, device="cuda", requires_grad=True)
    result = jit_fuser(lambda x: torch.nn.functional.gelu(x) * x)(values)
    result.sum().backward()
    assert values.grad is not None
    return {"result": result, "gradient": values.grad}


def run_plainly() -> dict[str, torch.Tensor]:
    """The same without a fuser."""
    values = torch.linspace(-2, 2, 6, device="cuda", requires_grad=True)
    result = torch.nn.functional.gelu(values) * values
    result.sum().backward()
    assert values.grad is not None
    return {"result": result, "gradient": values.grad}
