"""What is checked of hook points inside a patched tree, on a device.

The functions at the end stand for features: a check registers them as the build's table would.
"""

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

import torch

from features.attention.attention_scenarios import make_attention
from features.parts import Named, call, make_config, make_groups, make_random

DONE: Named = {"done": torch.ones(1)}
CONDITIONS = (("use_flash_attn", ()), ("attention_backend", ("flash", "fused")))
EVENTS: list[Any] = []


@contextlib.contextmanager
def register(point: str, *names: str, when: Any = (("num_layers", ()),)) -> Iterator[None]:
    """Put functions of this module at a hook point."""
    from mindspeed.core import hooks

    before = dict(hooks._POINTS)
    hooks._POINTS[point] = tuple((f"{__name__}:{name}", when) for name in names)
    try:
        yield
    finally:
        hooks._POINTS.update(before)


def check_attention() -> Named:
    """Features compose in order; with none, or none that is on, the module is upstream's own."""
    from megatron.core.transformer.enums import AttnBackend

    inputs = [make_random(3, 2, 4, 8, dtype=torch.float32) for _ in range(3)]
    with register("attention", "attend_ones", "attend_doubled"):
        found = make_attention(torch.float32)(*inputs, None)
    assert torch.equal(found, torch.full_like(found, 2.0))
    with register("attention", "attend_ones", when=CONDITIONS):
        assert make_attention(torch.float32).attend is None
        for backend in (AttnBackend.flash, AttnBackend.fused):
            module = make_attention(torch.float32, attention_backend=backend)
            assert module.attend is attend_ones(None, None)
        assert make_attention(torch.float32, attention_backend=AttnBackend.local).attend is None
    assert make_attention(torch.float32).attend is None
    return DONE


def check_batch() -> Named:
    """A feature slices the batch while the config of the groups says so; else upstream does."""
    from megatron.core.utils import get_batch_on_this_cp_rank
    from mindspeed.core import hooks

    batch = {"tokens": torch.arange(8).view(2, 4), "cu_seqlens": None}
    keywords: dict[str, Any] = {"batch": dict(batch), "is_hybrid_cp": False}
    hooks.forget_groups()
    with register("batch", "slice_first_half"):
        assert call(get_batch_on_this_cp_rank, **keywords)["tokens"].shape == (2, 4)
        hooks.create_groups(make_config(torch.float32))
        assert call(get_batch_on_this_cp_rank, **keywords)["tokens"].shape == (2, 2)
    hooks.forget_groups()
    return DONE


def check_dispatcher() -> Named:
    """A feature gives a MoE layer its dispatcher; without one it is upstream's."""
    from megatron.core.transformer.moe.moe_layer import MoELayer

    settings: dict[str, Any] = {
        "num_moe_experts": 2,
        "moe_router_load_balancing_type": "none",
        "moe_token_dispatcher_type": "alltoall",
    }
    config = make_config(torch.float32, **settings)
    keywords: dict[str, Any] = {
        "config": config,
        "submodules": _expert_parts(),
        "pg_collection": make_groups(),
    }
    with register("dispatcher", "make_dispatcher"):
        layer = call(MoELayer, **keywords)
    assert layer.token_dispatcher.layer is layer
    takes_groups = set(inspect.signature(MoELayer).parameters) & {
        "pg_collection",
        "model_comm_pgs",
    }
    assert (layer.token_dispatcher.groups is not None) == bool(takes_groups)
    assert (
        type(call(MoELayer, **keywords).token_dispatcher).__name__ == "MoEAlltoAllTokenDispatcher"
    )
    return DONE


def _expert_parts() -> Any:
    from megatron.core.models.gpt.moe_module_specs import get_moe_module_spec

    keywords: dict[str, Any] = {"use_te": False, "num_experts": 2, "moe_grouped_gemm": False}
    spec = call(get_moe_module_spec, **keywords)
    return spec.keywords["submodules"] if hasattr(spec, "keywords") else spec.submodules


def check_groups() -> Named:
    """Groups are made once, before the first module, and again after destroy_model_parallel."""
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
    from megatron.core.transformer.module import MegatronModule
    from mindspeed.core import hooks

    hooks.forget_groups()
    EVENTS.clear()
    first, second = (make_config(torch.float32) for _ in range(2))
    with register("groups", "create_first", "create_second"):
        for config in (first, first, second):
            MegatronModule(config)
        assert [(name, config is first) for name, config in EVENTS] == [
            ("create_first", True),
            ("create_second", True),
        ]
        parallel_state.destroy_model_parallel()
        MegatronModule(second)  # nobody has made groups yet, so no feature can
        assert len(EVENTS) == 2
        parallel_state.initialize_model_parallel()
        model_parallel_cuda_manual_seed(1234)
        MegatronModule(second)
        assert [config is second for _, config in EVENTS[2:]] == [True, True]
    return DONE


def attend_ones(module: Any, inner: Any) -> Any:
    """A feature that replaces attention."""
    return _attend_ones


def _attend_ones(module: Any, query: torch.Tensor, *rest: Any) -> torch.Tensor:
    return torch.ones(*query.shape[:2], 32, device=query.device)


def attend_doubled(module: Any, inner: Any) -> Any:
    """A feature that wraps what stands before it."""
    return lambda *arguments: 2 * inner(*arguments)


def slice_first_half(batch: dict[str, Any], cp_group: Any, inner: Any) -> dict[str, Any]:
    """A feature that cuts sequences in its own way."""
    assert inner is None
    return {key: x if x is None else x[:, : x.shape[1] // 2] for key, x in batch.items()}


class Dispatcher:
    """A token dispatcher that only remembers."""

    def __init__(self, layer: Any, groups: Any) -> None:
        self.layer, self.groups = layer, groups


def make_dispatcher(layer: Any, groups: Any, inner: Any) -> Dispatcher:
    """A feature with a dispatcher of its own."""
    assert layer.num_local_experts == 2
    return Dispatcher(layer, groups)


def create_first(config: Any) -> None:
    """A feature that makes groups."""
    EVENTS.append(("create_first", config))


def create_second(config: Any) -> None:
    """Another one."""
    EVENTS.append(("create_second", config))
