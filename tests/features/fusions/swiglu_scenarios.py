"""Scenarios with a SwiGLU in them: the functions, the MLP, experts, and a small GPT.

Each is run on pristine trees too, so `fused` sets the field only where it is asked for.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

Named = dict[str, torch.Tensor]


def make_config(dtype: torch.dtype, *, fused: bool = False, **changes: Any) -> Any:
    """A small SwiGLU transformer config."""
    from megatron.core import parallel_state
    from megatron.core.transformer.transformer_config import TransformerConfig

    settings: dict[str, Any] = {
        "tensor_model_parallel_size": parallel_state.get_tensor_model_parallel_world_size(),
        "num_layers": 2,
        "hidden_size": 32,
        "ffn_hidden_size": 40,
        "num_attention_heads": 4,
        "activation_func": F.silu,
        "gated_linear_unit": True,
        "add_bias_linear": False,
        "bf16": dtype is torch.bfloat16,
        "params_dtype": dtype,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
    }
    if fused:
        settings["use_fused_swiglu"] = True
    return TransformerConfig(**(settings | changes))


def run_mlp(dtype: torch.dtype, *, weighted: bool = False, **changes: Any) -> Named:
    """The MLP, as a dense layer or as an expert with a weight for each token."""
    from megatron.core.transformer.mlp import MLP

    config = make_config(dtype, **changes)
    mlp = _call(MLP, config=config, submodules=_mlp_parts(), ffn_hidden_size=40).cuda()
    _perturb_biases(mlp)
    x = _random(5, 2, 32, dtype=dtype)
    if weighted:
        weights = torch.rand(10, device="cuda").requires_grad_()
        out, _ = mlp(x.view(10, 32), weights)
        return _backward(mlp, out, x=x, weights=weights)
    out, bias = mlp(x)
    return _backward(mlp, out if bias is None else out + bias, x=x)


def run_mlp_as_framework(dtype: torch.dtype, *, style: str) -> Named:
    """The MLP from a config that is made and changed the way a framework does it.

    Megatron's modules are imported first, and the command line says nothing of us.
    """
    import dataclasses
    import sys

    from megatron.core.transformer import mlp as _  # noqa: F401
    from megatron.core.transformer.transformer_config import TransformerConfig

    @dataclasses.dataclass
    class Provider(TransformerConfig):  # type: ignore[misc]
        """`__post_init__` is put off until `finalize`."""

        vocab_size: int = 64

        def __post_init__(self) -> None:
            pass

        def finalize(self) -> None:
            super().__post_init__()

    class ModelConfig(TransformerConfig):  # type: ignore[misc]
        """An `__init__` of its own."""

        def __init__(self, *, model_type: str, **rest: Any) -> None:
            self.model_type = model_type
            super().__init__(**rest)

    sys.argv = ["train.py", "--config", "grpo.yaml"]
    settings = {
        field.name: getattr(make_config(dtype), field.name)
        for field in dataclasses.fields(TransformerConfig)
        if field.init
    }
    if style == "set after construction":
        config = TransformerConfig(**settings)
        config.use_fused_swiglu = True
    elif style == "provider":
        config = Provider(**settings)
        config.use_fused_swiglu = True
        config.finalize()
    else:
        config = ModelConfig(model_type="llama", **settings | {"use_fused_swiglu": True})
    module = _call(_get_mlp(), config=config, submodules=_mlp_parts(), ffn_hidden_size=40).cuda()
    x = _random(5, 2, 32, dtype=dtype)
    return _backward(module, module(x)[0], x=x)


def _get_mlp() -> Any:
    from megatron.core.transformer.mlp import MLP

    return MLP


def run_functions(dtype: torch.dtype, *, fused: bool = False, fp8: bool = False) -> Named:
    """Both entry points of upstream's fused_bias_swiglu, or our functions in their place."""
    from megatron.core.fusions import fused_bias_swiglu as upstream

    with_bias_swiglu, with_weights = upstream.bias_swiglu_impl, _weigh_upstream
    if fused:
        from mindspeed.core.fusions import fused_bias_swiglu as ours

        with_bias_swiglu, with_weights = ours.fused_bias_swiglu, ours.fused_weighted_swiglu
    named: Named = {}
    for shape in ((7, 24), (3, 2, 24)):
        for with_bias in (False, True):
            x = _random(*shape, dtype=dtype)
            bias = _random(24, dtype=dtype) if with_bias else None
            out = with_bias_swiglu(x, bias, fp8)
            leaves = {"x": x} if bias is None else {"x": x, "bias": bias}
            found = _backward(None, out, **leaves)
            named |= {f"{len(shape)}d {with_bias} {key}": value for key, value in found.items()}
    x, weights = _random(7, 24, dtype=dtype), torch.rand(7, 1, device="cuda").requires_grad_()
    out = with_weights(x, weights, fp8)
    return named | _backward(None, out, weighted_x=x, weights=weights)


def _weigh_upstream(x: torch.Tensor, weights: torch.Tensor, fp8: bool) -> torch.Tensor:
    from megatron.core.fusions.fused_bias_swiglu import weighted_bias_swiglu_impl

    out: torch.Tensor = weighted_bias_swiglu_impl(x, None, weights, fp8)
    return out


def run_grouped_experts(dtype: torch.dtype, **changes: Any) -> Named:
    """TEGroupedMLP with grouped linears of plain torch in place of TransformerEngine's."""
    from megatron.core.transformer.moe import experts

    parts_class = getattr(experts, "GroupedMLPSubmodules", None) or experts.MLPSubmodules
    config = make_config(dtype, num_moe_experts=2, moe_ffn_hidden_size=24, **changes)
    module = _call(
        experts.TEGroupedMLP,
        num_local_experts=2,
        config=config,
        submodules=parts_class(linear_fc1=GroupedLinear, linear_fc2=GroupedLinear),
        pg_collection=_groups(),
    ).cuda()
    x = _random(9, 32, dtype=dtype)
    probabilities = torch.rand(9, device="cuda").requires_grad_()
    counts = torch.tensor([5, 4], device="cuda")
    out, _ = module(x, counts, probabilities)
    return _backward(module, out, x=x, probabilities=probabilities)


def run_grouped_activation(dtype: torch.dtype, **changes: Any) -> Named:
    """The activation of GroupedMLP; its matmuls need the CUDA package grouped_gemm."""
    from megatron.core.transformer.moe import experts

    experts.gg.assert_grouped_gemm_is_available = lambda: None
    config = make_config(dtype, num_moe_experts=2, moe_ffn_hidden_size=24, **changes)
    module = _call(experts.GroupedMLP, num_local_experts=2, config=config, pg_collection=_groups())
    x, weights = _random(9, 48, dtype=dtype), torch.rand(9, 1, device="cuda").requires_grad_()
    return _backward(None, module.activation_func_with_probs(x, weights), x=x, weights=weights)


def run_shared_expert(dtype: torch.dtype, **changes: Any) -> Named:
    """A shared expert, computed in the pieces that overlap with the token dispatcher."""
    from megatron.core.transformer.moe.shared_experts import SharedExpertMLP

    config = make_config(
        dtype,
        num_moe_experts=2,
        moe_shared_expert_intermediate_size=24,
        moe_shared_expert_overlap=True,
        moe_token_dispatcher_type="alltoall",
        **changes,
    )
    module = _call(
        SharedExpertMLP, config=config, submodules=_mlp_parts(), gate=False, pg_collection=_groups()
    ).cuda()
    x = _random(5, 2, 32, dtype=dtype)
    module.pre_forward_comm(x)
    module.linear_fc1_forward_and_act()
    module.linear_fc2_forward()
    module.post_forward_comm()
    return _backward(module, module.get_output(), x=x)


def run_legacy_mlp(dtype: torch.dtype, *, fused: bool = False) -> Named:
    """The MLP of megatron.legacy, which reads the command line."""
    from argparse import Namespace

    from megatron.legacy.model.transformer import ParallelMLP
    from megatron.training import global_vars

    off = dict.fromkeys(("openai_gelu", "onnx_safe", "squared_relu", "bias_gelu_fusion"), False)
    global_vars.set_args(Namespace(**off, swiglu=True, use_fused_swiglu=fused))
    module = ParallelMLP(make_config(dtype)).cuda()
    x = _random(5, 2, 32, dtype=dtype)
    return _backward(module, module(x)[0], x=x)


def run_gpt(dtype: torch.dtype, **changes: Any) -> Named:
    """Two layers of GPT with rotary embeddings: the loss of each token and every gradient."""
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel

    model = GPTModel(
        make_config(dtype, **changes),
        get_gpt_layer_local_spec(),
        vocab_size=64,
        max_sequence_length=16,
        position_embedding_type="rope",
    ).cuda()
    model = model.bfloat16() if dtype is torch.bfloat16 else model
    tokens = torch.randint(0, 64, (2, 12), device="cuda")
    positions = torch.arange(12, device="cuda").expand(2, 12)
    mask = torch.ones(12, 12, dtype=torch.bool, device="cuda").triu(1).expand(2, 1, 12, 12)
    losses = model(tokens, positions, mask, labels=tokens.roll(-1, 1))
    losses.float().mean().backward()
    named = {"losses": losses}
    return named | {f"grad {name}": _grad(p) for name, p in model.named_parameters()}


def count_launches(scenario: str, dtype: torch.dtype, **options: Any) -> Named:
    """How often a scenario of this module calls the operator, forward and backward."""
    import torch_npu

    counts = {"npu_swiglu": 0, "npu_swiglu_backward": 0}

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            counts[name] += 1
            return function(*args, **kwargs)

        return call

    for name in counts:
        setattr(torch_npu, name, counted(name, getattr(torch_npu, name)))
    globals()[scenario](dtype, **options)
    return {name: torch.tensor(count) for name, count in counts.items()}


class GroupedLinear(torch.nn.Module):
    """One weight an expert, and rows in runs of one expert: what TEGroupedMLP needs of a linear."""

    def __init__(
        self,
        num_gemms: int,
        input_size: int,
        output_size: int,
        *,
        config: Any,
        init_method: Callable[[torch.Tensor], Any],
        **rest: Any,
    ) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(
            torch.empty(num_gemms, output_size, input_size, dtype=config.params_dtype)
        )
        init_method(self.weight)

    def forward(self, x: torch.Tensor, counts: Any) -> tuple[torch.Tensor, None]:
        """x: [tokens, input]; counts: of each expert. Returns [tokens, output] and no bias."""
        sizes = counts if isinstance(counts, list) else counts.tolist()
        runs = torch.split(x, sizes)
        return torch.cat([run @ w.t() for run, w in zip(runs, self.weight, strict=True)]), None


def _mlp_parts() -> Any:
    from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
    from megatron.core.transformer.mlp import MLPSubmodules

    return MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear)


def _groups() -> Any:
    """The process groups that newer releases pass to constructors; the oldest take none."""
    from megatron.core import process_groups_config as module

    for name in ("ProcessGroupCollection", "ModelCommProcessGroups"):
        make = getattr(getattr(module, name, None), "use_mpu_process_groups", None)
        if make is not None:
            return make()
    return None


def _call(function: Callable[..., Any], **keywords: Any) -> Any:
    """Call with those keywords that this release's signature has."""
    known = inspect.signature(function).parameters
    if "model_comm_pgs" in known and "pg_collection" in keywords:
        keywords["model_comm_pgs"] = keywords["pg_collection"]
    return function(**{key: value for key, value in keywords.items() if key in known})


def _random(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype).requires_grad_()


def _perturb_biases(module: torch.nn.Module) -> None:
    """Upstream begins with zero biases, which would hide a wrong one."""
    for name, parameter in module.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)


def _backward(module: torch.nn.Module | None, out: torch.Tensor, **leaves: torch.Tensor) -> Named:
    """Backward with a gradient that differs at every element; every gradient by name."""
    out.backward(torch.randn_like(out))
    named = {"out": out} | {f"grad {name}": _grad(leaf) for name, leaf in leaves.items()}
    parameters = dict(module.named_parameters()) if module is not None else {}
    return named | {f"grad {name}": _grad(p) for name, p in parameters.items()}


def _grad(tensor: torch.Tensor) -> torch.Tensor:
    grad = getattr(tensor, "main_grad", None) if tensor.grad is None else tensor.grad
    assert grad is not None
    return grad
