"""What is checked of hook points inside a patched tree, on a device.

The functions at the end stand for features: a check registers them as the build's table would.
"""

import contextlib
import inspect
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch

from features.attention.attention_scenarios import make_attention
from features.parts import Named, call, find_grad, make_config, make_gpt, make_groups, make_random

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
        hooks._POINTS.clear()
        hooks._POINTS.update(before)


def check_activation() -> Named:
    """A feature computes what stands between the linears of an MLP; else upstream."""
    from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
    from megatron.core.transformer.mlp import MLP, MLPSubmodules

    keywords: dict[str, Any] = {
        "config": make_config(torch.float32, add_bias_linear=True),
        "submodules": MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear),
        "ffn_hidden_size": 40,
    }
    x = make_random(6, 1, 32, dtype=torch.float32)
    with register("activation", "activate_ones", "activate_doubled"):
        mlp = call(MLP, **keywords).cuda()
    weight = mlp.linear_fc2.weight
    assert torch.allclose(mlp(x)[0], 2 * weight.sum(1).expand(6, 1, -1), atol=1e-5)
    assert call(MLP, **keywords).activate is None
    return DONE


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


def check_block() -> Named:
    """A feature wraps the forward of a transformer block; else the block has only its class's."""
    return _check_wrapped("block", "decoder")


def check_layer() -> Named:
    """A feature wraps the forward of every transformer layer; else they have only their class's."""
    return _check_wrapped("layer", "decoder.layers.1")


def _check_wrapped(point: str, name: str) -> Named:
    plain = make_gpt(make_config(torch.float32))
    with register(point, "forward_counted", "forward_halved"):
        wrapped = make_gpt(make_config(torch.float32))
    wrapped.load_state_dict(plain.state_dict())
    assert "forward" not in vars(plain.get_submodule(name))
    tokens, positions = torch.arange(6, device="cuda").view(1, 6), torch.arange(6, device="cuda")
    mask = torch.ones(6, 6, dtype=torch.bool, device="cuda").triu(1).view(1, 1, 6, 6)
    want = plain.decoder(plain.embedding(tokens, positions[None]), mask)
    EVENTS.clear()
    found = wrapped.decoder(wrapped.embedding(tokens, positions[None]), mask)
    seen = [EVENTS.pop(0) for _ in range(len(EVENTS))]
    if point == "block":
        assert seen == [wrapped.decoder]
        assert torch.equal(found, want / 2)
    else:
        assert seen == list(wrapped.decoder.layers)
        assert not torch.equal(found, want)
    return DONE


def check_optimizer() -> Named:
    """A feature gives the Adam that is called with upstream's keywords; else it is upstream's."""
    from megatron.core.optimizer import OptimizerConfig

    def make(name: str = "adam") -> Any:
        model = make_parallel(make_gpt(make_config(torch.float32)))
        config = OptimizerConfig(optimizer=name, lr=1e-3, adam_eps=1e-7)
        return make_optimizer(config, model).chained_optimizers[0].optimizer

    upstream = type(make())
    with register("optimizer", "choose_counted", when=(("lr", ()),)):
        found = make()
        assert type(found) is CountedAdam
        assert found.defaults["eps"] == 1e-7
        assert EVENTS.pop() is upstream
        assert type(make("sgd")) is torch.optim.SGD
    assert type(make()) is upstream
    return DONE


def check_weight_grad() -> Named:
    """A feature adds to main_grad in both kinds of linear layer; else upstream's kernel would."""
    from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear

    for kind, more in (
        (ColumnParallelLinear, {}),
        (RowParallelLinear, {"input_is_parallel": True}),
    ):
        with register("weight_grad", "choose_add_grad"):
            make_linear(kind, more, fusion=False)
            layer = make_linear(kind, more, fusion=True)
        weight = layer.weight
        weight.main_grad = torch.ones(6, 8, device="cuda")
        x = make_random(3, 2, 8, dtype=torch.float32)
        out, _ = layer(x)
        grad = torch.randn_like(out)
        out.backward(grad)
        want = 1 + grad.view(6, 6).t() @ x.view(6, 8)
        assert EVENTS.pop() is layer
        assert not EVENTS  # without gradient_accumulation_fusion nobody was asked
        assert weight.grad is None
        assert torch.allclose(weight.main_grad, want, atol=1e-6)
        assert torch.allclose(find_grad(x), grad @ weight, atol=1e-6)
    refused = pytest.raises(RuntimeError, match="fused_weight_gradient_mlp_cuda")
    with register("weight_grad"), refused:
        make_linear(ColumnParallelLinear, {}, fusion=True)
    return DONE


def make_linear(kind: Any, more: dict[str, Any], *, fusion: bool) -> Any:
    """A linear layer of 8 inputs and 6 outputs on the device."""
    keywords: dict[str, Any] = {
        "config": make_config(torch.float32, gradient_accumulation_fusion=fusion),
        "init_method": torch.nn.init.normal_,
        "bias": False,
        "skip_bias_add": False,
        **more,
    }
    return kind(8, 6, **keywords).cuda()


def make_parallel(model: Any) -> Any:
    """The model in Megatron's data-parallel wrapper, which its optimizers expect."""
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig

    return DistributedDataParallel(model.config, DistributedDataParallelConfig(), model)


def make_optimizer(config: Any, model: Any) -> Any:
    """Upstream's optimizer of one model."""
    from megatron.core.optimizer import get_megatron_optimizer

    return get_megatron_optimizer(config, [model])


def forward_counted(module: Any, inner: Any) -> Any:
    """A feature that runs upstream's forward."""
    assert inner is type(module).forward
    return _forward_counted


def _forward_counted(module: Any, *arguments: Any, **keywords: Any) -> Any:
    EVENTS.append(module)
    return type(module).forward(module, *arguments, **keywords)


def forward_halved(module: Any, inner: Any) -> Any:
    """A feature that wraps what stands before it."""
    return partial(_forward_halved, inner)


def _forward_halved(inner: Any, module: Any, *arguments: Any, **keywords: Any) -> Any:
    found = inner(module, *arguments, **keywords)
    return (found[0] / 2, *found[1:]) if isinstance(found, tuple) else found / 2


class CountedAdam(torch.optim.AdamW):
    """An Adam of a feature."""


def choose_counted(config: Any, inner: Any) -> type[torch.optim.Optimizer]:
    """A feature with an Adam of its own."""
    assert config.adam_eps == 1e-7
    EVENTS.append(inner)
    return CountedAdam


def choose_add_grad(layer: Any, inner: Any) -> Any:
    """A feature that adds gradients; it is asked only where upstream would use its kernel."""
    EVENTS.append(layer)
    return add_grad


def add_grad(total_input: torch.Tensor, grad: torch.Tensor, main_grad: torch.Tensor) -> None:
    """What the feature adds."""
    main_grad.addmm_(grad.t(), total_input)


def activate_ones(module: Any, inner: Any) -> Any:
    """A feature that replaces the activation."""
    return _activate_ones


def _activate_ones(module: Any, x: torch.Tensor, bias: Any, scale: Any) -> torch.Tensor:
    assert bias.shape == x.shape[-1:]
    assert scale is None
    return torch.ones(*x.shape[:-1], x.shape[-1] // 2, device=x.device)


def activate_doubled(module: Any, inner: Any) -> Any:
    """A feature that wraps what stands before it."""
    return lambda *arguments: 2 * inner(*arguments)


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
