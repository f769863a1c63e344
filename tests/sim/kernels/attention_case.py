"""One attention call and its float64 counterpart, forward and gradients compared in one place."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ascend_sim.kernels.attention import npu_fusion_attention, npu_fusion_attention_grad
from sim.kernels import dense_attention as dense
from sim.kernels.numeric import assert_near, draw

Forward = Callable[..., Any]


@dataclass
class Case:
    """Sizes of one call. `lengths` are (queries, keys) of each sequence, equal where not TND."""

    layout: str = "BNSD"
    lengths: Sequence[tuple[int, int]] = ((5, 7), (5, 7))
    heads: int = 4
    kv_heads: int = 2
    width: int = 6
    value_width: int = 6
    dtype: torch.dtype = torch.float32
    scale: float = 0.4
    softmax_layout: str = ""
    queries: list[Tensor] = field(init=False)
    keys: list[Tensor] = field(init=False)
    values: list[Tensor] = field(init=False)
    upstream: list[Tensor] = field(init=False)

    def __post_init__(self) -> None:
        sizes = enumerate(self.lengths)
        self.queries, self.keys, self.values, self.upstream = [], [], [], []
        for b, (queries, keys) in sizes:
            shapes = [
                (self.heads, queries, self.width),
                (self.kv_heads, keys, self.width),
                (self.kv_heads, keys, self.value_width),
                (self.heads, queries, self.value_width),
            ]
            targets = (self.queries, self.keys, self.values, self.upstream)
            for number, (shape, target) in enumerate(zip(shapes, targets, strict=True)):
                target.append(draw(*shape, dtype=self.dtype, seed=10 * b + number))

    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value in the layout of the case."""
        parts = (self.queries, self.keys, self.values)
        query, key, value = (dense.pack(part, self.layout) for part in parts)
        return query, key, value

    def arguments(self) -> dict[str, Any]:
        """The keyword arguments that the sizes determine."""
        found: dict[str, Any] = {"head_num": self.heads, "input_layout": self.layout}
        if self.layout == "TND":
            ends = torch.tensor(list(self.lengths)).cumsum(0).tolist()
            found["actual_seq_qlen"] = [end[0] for end in ends]
            found["actual_seq_kvlen"] = [end[1] for end in ends]
            found["softmax_layout"] = self.softmax_layout
        return found


def run(case: Case, *, forward: Forward = npu_fusion_attention, **arguments: Any) -> Any:
    """Call a forward kernel on the inputs of a case."""
    return forward(*case.inputs(), **{**case.arguments(), **arguments})


def check(
    case: Case,
    per_sequence: Sequence[Mapping[str, Any]] | None = None,
    *,
    shared: Mapping[str, Tensor] | None = None,
    forward: Forward = npu_fusion_attention,
    backward: Forward = npu_fusion_attention_grad,
    **arguments: Any,
) -> tuple[Any, Any]:
    """Run the kernels and `dense.attend`, compare results, statistics and gradients.

    Args:
        case: the sizes and inputs.
        per_sequence: keywords of `dense.attend` for each sequence (kept, bias, dropout).
        shared: float64 leaves for all sequences that get a gradient: `sink`.
        forward: the forward kernel.
        backward: the gradient kernel.
        **arguments: further arguments of both kernels, by their forward names.

    Returns:
        What the forward and the gradient kernel returned.
    """
    options = per_sequence or [{} for _ in case.lengths]
    leaves = [
        [tensor.double().requires_grad_() for tensor in parts]
        for parts in (case.queries, case.keys, case.values)
    ]
    extra = dict(shared or {})
    results = [
        dense.attend(q, k, v, scale=case.scale, **{**extra, **option})
        for q, k, v, option in zip(*leaves, options, strict=True)
    ]
    total = sum(
        (out * up.double()).sum() for (out, _, _), up in zip(results, case.upstream, strict=True)
    )
    assert isinstance(total, Tensor)
    torch.autograd.backward(total)

    inputs = case.inputs()
    common = {**case.arguments(), **arguments}
    returned = forward(*inputs, scale=case.scale, **common)
    out, top, total_weight = returned[:3]
    assert out.dtype == case.dtype
    assert_near(out, dense.pack([r[0].detach() for r in results], case.layout))
    # The largest finite numbers stand for rows that see nothing.
    limit = torch.finfo(torch.float32)
    tops = [r[1].clamp(min=limit.min) for r in results]
    sums = [torch.where(r[1].isinf(), limit.max, r[2]) for r in results]
    assert_near(top, dense.pack_stats(tops, case.layout, case.softmax_layout), dtype=case.dtype)
    expected_sum = dense.pack_stats(sums, case.layout, case.softmax_layout)
    assert_near(total_weight, expected_sum, dtype=case.dtype)
    assert top.dtype == total_weight.dtype == torch.float32

    for name in ("seed", "offset", "dropout_mask"):
        common.pop(name, None)
    gradients = backward(
        *inputs,
        dense.pack(case.upstream, case.layout),
        scale_value=case.scale,
        softmax_max=top,
        softmax_sum=total_weight,
        attention_in=out,
        **(dict(zip(("seed", "offset"), returned[4:6], strict=True))),
        **common,
    )
    # dq and dk hold (dy v - dy out) scale k, in which the saved out is rounded to the dtype.
    pairs = zip(case.upstream, results, strict=True)
    products = [(up * r[0].detach()).abs().sum(-1) for up, r in pairs]
    terms = case.scale * _largest(products) * _largest([*case.queries, *case.keys])
    for actual, parts, size in zip(gradients[:3], leaves, (terms, terms, 1.0), strict=True):
        wanted = []
        for part in parts:
            assert part.grad is not None
            wanted.append(part.grad)
        assert actual.dtype == case.dtype
        assert_near(actual, dense.pack(wanted, case.layout), terms=size)
    return returned, gradients


def _largest(tensors: Sequence[Tensor]) -> float:
    return max((float(t.abs().max()) for t in tensors if t.numel()), default=0.0)
