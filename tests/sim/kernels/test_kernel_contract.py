"""Kernels against torch_npu itself: parameters as in its schemas, outputs as in its meta functions.

The signature check goes over every registered kernel. The meta check calls a kernel on CPU tensors
and the real operator's meta function on tensors of the same shapes, and compares what comes out.
"""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import ascend_sim
from ascend_sim.registry import KERNELS

ascend_sim.install()

SCHEMAS = {
    f"{schema.name}.{schema.overload_name}".rstrip("."): schema
    for schema in torch._C._jit_get_all_schemas()
    if schema.name.startswith("npu::")
}


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_parameters_are_those_of_the_schema(name: str) -> None:
    schema = SCHEMAS[f"npu::{name}"]
    parameters = list(inspect.signature(KERNELS[name].function).parameters.values())
    assert [p.name for p in parameters] == [a.name for a in schema.arguments]
    for parameter, argument in zip(parameters, schema.arguments, strict=True):
        assert (parameter.kind is parameter.KEYWORD_ONLY) == argument.kwarg_only, parameter.name
        if argument.has_default_value():
            assert parameter.default == argument.default_value, parameter.name
        else:
            assert parameter.default is parameter.empty, parameter.name


def half(*shape: int) -> Tensor:
    return torch.randn(*shape).half()


def bf16(*shape: int) -> Tensor:
    return torch.randn(*shape).bfloat16()


def int8(*shape: int) -> Tensor:
    return torch.randint(-9, 9, shape).to(torch.int8)


def int32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def int64(*values: int) -> Tensor:
    return torch.tensor(values)


def call(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, kwargs


ROUTES = torch.tensor([[1, 1, 0], [0, 1, 1], [1, 0, 1], [1, 1, 0]], dtype=torch.bool)
PLACES = int32(0, 3, 4, 5, 1, 6, 2, 7)
PADDED = int32(0, 2, 0, 1, 1, 2)

CASES: dict[str, Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "npu_moe_token_permute": lambda: call(bf16(4, 3), int64(0, 1, 2, 1)),
    "npu_moe_token_permute cut": lambda: call(half(4, 3), torch.zeros(4, 2).int(), 5),
    "npu_moe_token_permute negative": lambda: call(half(4, 3), torch.zeros(4, 2).int(), -3),
    "npu_moe_token_permute_grad": lambda: call(half(4, 3), half(8, 3), torch.zeros(4, 2), PLACES),
    "npu_moe_token_permute_grad_v2": lambda: call(half(8, 3), PLACES, 4, torch.bfloat16, 2),
    "npu_moe_token_unpermute": lambda: call(half(8, 3), PLACES, torch.rand(4, 2)),
    "npu_moe_token_unpermute plain": lambda: call(half(8, 3), PLACES),
    "_npu_moe_token_unpermute": lambda: call(half(8, 3), PLACES, torch.rand(4, 2)),
    "npu_moe_token_unpermute_grad": lambda: call(half(8, 3), half(4, 3), PLACES, torch.rand(4, 2)),
    "npu_moe_token_unpermute_grad plain": lambda: call(half(8, 3), half(8, 3), PLACES),
    "npu_moe_token_unpermute_grad_v2": lambda: call(
        half(4, 3), PLACES, 8, torch.float16, torch.rand(4, 2), permuted_tokens=half(8, 3)
    ),
    "npu_moe_token_permute_with_routing_map": lambda: call(
        bf16(4, 3), ROUTES, probs=torch.rand(4, 3), num_out_tokens=8
    ),
    "npu_moe_token_permute_with_routing_map padded": lambda: call(
        bf16(4, 3), ROUTES, num_out_tokens=7, drop_and_pad=True
    ),
    "npu_moe_token_permute_with_routing_map_grad": lambda: call(
        half(8, 3), torch.rand(8), PLACES, ROUTES, 3, 4, False
    ),
    "npu_moe_token_permute_with_routing_map_grad padded": lambda: call(
        half(6, 3), None, PADDED, ROUTES, 3, 4, True
    ),
    "npu_moe_token_unpermute_with_routing_map": lambda: call(
        bf16(8, 3), PLACES, [4, 3], probs=torch.rand(4, 3), routing_map=ROUTES
    ),
    "_npu_moe_token_unpermute_with_routing_map": lambda: call(
        bf16(8, 3), PLACES, [4, 3], probs=torch.rand(4, 3), routing_map=ROUTES
    ),
    "_npu_moe_token_unpermute_with_routing_map padded": lambda: call(
        bf16(6, 3), PADDED, [4, 3], drop_and_pad=True
    ),
    "npu_moe_token_unpermute_with_routing_map_grad": lambda: call(
        bf16(4, 3), PLACES, PLACES, ROUTES, bf16(8, 3), bf16(4, 3), False, [4, 3]
    ),
    "npu_moe_token_unpermute_with_routing_map_grad plain": lambda: call(
        bf16(4, 3), PLACES, PLACES, None, None, None, False, [4, 3]
    ),
    "npu_moe_gating_top_k_softmax": lambda: call(bf16(2, 4, 6), k=2),
    "npu_moe_gating_top_k_softmax_v2": lambda: call(half(4, 6), k=2, output_softmax=True),
    "npu_moe_gating_top_k_softmax_v2 renorm": lambda: call(half(4, 6), k=2, renorm=1),
    "npu_moe_gating_top_k": lambda: call(half(4, 6), 2, norm_type=1, out_flag=True),
    "npu_moe_init_routing": lambda: call(half(4, 3), PLACES.reshape(4, 2), PLACES.reshape(4, 2), 3),
    "npu_moe_finalize_routing": lambda: call(
        half(8, 3), None, None, None, half(4, 2), PLACES, None
    ),
    "npu_moe_finalize_routing k": lambda: call(
        half(8, 3), None, None, None, None, PLACES, None, 0, 2
    ),
    "npu_moe_compute_expert_tokens": lambda: call(int32(0, 0, 2), 4),
    "npu_moe_re_routing": lambda: call(
        half(6, 3), torch.ones(2, 3, dtype=torch.int64), per_token_scales=torch.rand(6)
    ),
    "npu_moe_re_routing plain": lambda: call(int8(6, 3), torch.ones(3, 2, dtype=torch.int32)),
    "npu_grouped_matmul rows": lambda: call(
        [bf16(8, 5)], [bf16(3, 5, 2)], group_list=int64(1, 4, 8), split_item=3, group_type=0
    ),
    "npu_grouped_matmul columns": lambda: call(
        [bf16(8, 5).t()], [bf16(8, 2)], group_list=int64(1, 4, 8), split_item=3, group_type=2
    ),
    "npu_grouped_matmul separate": lambda: call(
        [half(2, 3, 4), half(5, 1, 6)], [half(4, 2), half(6, 7)], group_type=-1
    ),
    "npu_grouped_matmul lists": lambda: call(
        [half(3, 4), half(5, 4)], [half(4, 2), half(4, 2)], split_item=2, group_type=0
    ),
    "npu_grouped_matmul int8": lambda: call(
        [int8(8, 5)],
        [int8(3, 5, 2)],
        scale=[torch.rand(3, 2)],
        per_token_scale=[torch.rand(8)],
        group_list=int64(1, 4, 8),
        split_item=3,
        group_type=0,
        output_dtype=5,
    ),
    "npu_grouped_matmul.List one": lambda: call(
        [half(8, 5)], [half(5, 2), half(5, 2)], group_list=[3, 8], split_item=3
    ),
    # Not here: .List with one x and many weights. The meta function gives one output for each x,
    # the page and the device one for each weight, and so does the kernel.
    "npu_grouped_matmul_add_": lambda: call(
        torch.zeros(2, 5, 3), half(8, 5), half(8, 3), int64(3, 8)
    ),
    "npu_linear": lambda: call(half(4, 5), half(3, 5), half(3)),
    "npu_linear_backward": lambda: call(half(4, 3), half(4, 5), half(3, 5)),
    "npu_bmmV2": lambda: call(half(2, 4, 5), half(2, 5, 3), []),
    "npu_apply_adam_w.out": lambda: call(
        0.9, 0.9, 0.1, 0.0, 0.9, 0.9, 1e-8, half(3), None, False, False, out=[half(3)] * 3
    ),
    "npu_dtype_cast": lambda: call(half(2, 3), 15),
    "npu_dtype_cast_backward": lambda: call(half(2, 3), torch.float32, 5),
    "_npu_dtype_cast": lambda: call(half(2, 3), torch.float32),
    "_npu_dtype_cast_backward": lambda: call(half(2, 3), torch.float32),
    "_npu_format_cast": lambda: call(half(2, 3), 29),
    "npu_transpose": lambda: call(half(2, 3, 4), [2, 0, 1]),
    "npu_reshape": lambda: call(half(2, 3), [3, 2]),
    "npu_scatter_nd_update": lambda: call(half(4, 3), torch.tensor([[1], [0]]), half(2, 3)),
    "npu_scatter_nd_update_": lambda: call(half(4, 3), torch.tensor([[1], [0]]), half(2, 3)),
    "npu_gather_backward": lambda: call(
        half(2, 2), [4, 2], 0, int64(0, 1, 1, 0).reshape(2, 2), False
    ),
    "npu_dynamic_quant": lambda: call(half(2, 3, 8)),
    "npu_dynamic_quant_asymmetric": lambda: call(half(2, 3, 8)),
    "npu_dynamic_mx_quant": lambda: call(half(3, 100), dst_type=292),
    "npu_dynamic_mx_quant axis": lambda: call(half(3, 100), axis=0, dst_type=291, scale_alg=1),
    "npu_dynamic_mx_quant_with_dual_axis": lambda: call(half(2, 40, 100), dst_type=24),
    "npu_quantize int8": lambda: call(half(2, 8), torch.rand(8), None, 1),
    "npu_quantize int32": lambda: call(half(2, 8), torch.rand(8), None, 3),
    "npu_anti_quant": lambda: call(int8(2, 8), torch.rand(8)),
    "npu_quant_matmul half": lambda: call(int8(2, 4), int8(4, 3), torch.rand(3), output_dtype=5),
    "npu_quant_matmul int8": lambda: call(int8(2, 4), int8(4, 3), torch.rand(1)),
    "npu_quant_matmul mx": lambda: call(
        half(2, 100).to(torch.float8_e4m3fn),
        half(100, 3).to(torch.float8_e4m3fn),
        torch.full((2, 3, 2), 127, dtype=torch.uint8),
        pertoken_scale=torch.full((2, 2, 2), 127, dtype=torch.uint8),
        output_dtype=15,
        scale_dtype=293,
        pertoken_scale_dtype=293,
        group_sizes=[1, 1, 32],
    ),
    "npu_add_quant_matmul_": lambda: call(
        torch.zeros(2, 3),
        half(64, 2).to(torch.float8_e5m2),
        half(64, 3).to(torch.float8_e4m3fn),
        torch.full((1, 3, 2), 127, dtype=torch.uint8),
        x1_scale=torch.full((1, 2, 2), 127, dtype=torch.uint8),
        x1_scale_dtype=293,
        x2_scale_dtype=293,
    ),
    "npu_weight_quant_batchmatmul": lambda: call(half(2, 4), int8(4, 3), half(3)),
}


def to_meta(value: Any) -> Any:
    if isinstance(value, Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    return [to_meta(item) for item in value] if isinstance(value, list) else value


def describe(result: Any) -> list[Any]:
    outputs = result if isinstance(result, tuple | list) else [result]
    return [None if o is None else (list(o.shape), o.dtype) for o in outputs]


@pytest.mark.parametrize("case", sorted(CASES))
def test_outputs_are_those_of_the_meta_function(case: str) -> None:
    name = case.partition(" ")[0]
    base, _, overload = name.partition(".")
    operator = getattr(getattr(torch.ops.npu, base), overload or "default")
    args, kwargs = CASES[case]()
    metas = [to_meta(arg) for arg in args]
    expected = operator(*metas, **{key: to_meta(value) for key, value in kwargs.items()})
    assert describe(KERNELS[name].function(*args, **kwargs)) == describe(expected)
