"""Attention of a block of queries over a block of keys, with statistics, as an Ascend operator.

    s = scale Q K^T, masked    m = max s    l = sum exp(s - m)    out = dropout(exp(s - m) / l) V

`npu_fusion_attention` and `npu_fusion_attention_grad` (operator pages: torch_npu API reference).
The gradient takes m, l and out from its caller, so one block of keys gets its part of the gradient
from the statistics of all blocks.

Any object with these two methods can take its place; the schedules know no other kernel.

Dims: s queries, t keys, b batch, n heads, g key heads (n a multiple of g), d width of queries and
keys, v width of values (v <= d).
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from mindspeed.core.context_parallel.online_softmax import SBND, TND, Attended, Layout
from torch import Tensor

_MASK_SIZE = 2048  # the operator's compressed causal mask
_DEFINE_BLANK_ROWS = 2  # value of inner_precise


@dataclass(frozen=True)
class Mask:
    """Which keys each query may see.

    Attributes:
        causal: query i sees key j if j <= i + t - s (the last query sees all), in each sequence.
        given: bool, True where a key may not be seen: [1 or b, 1 or n, s, t].
        query_ends: packed: where each sequence's queries end, cumulative, without a leading 0.
        key_ends: likewise of the keys.
    """

    causal: bool = False
    given: Tensor | None = None
    query_ends: Sequence[int] | None = None
    key_ends: Sequence[int] | None = None


Draw = tuple[int, int, int]
"""What repeats a dropout mask: seed, offset, number of scores."""


class BlockKernel(Protocol):
    """Attention of one block and its gradient."""

    layout: Layout

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> tuple[Attended, Draw]:
        """The block's attention, and what the gradient needs to draw the same dropout."""
        ...

    def backward(
        self,
        grad: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        attended: Attended,
        mask: Mask,
        draw: Draw,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """dq, dk, dv of the block, from output and statistics over all blocks."""
        ...


@dataclass(frozen=True)
class NpuKernel:
    """The Ascend operators.

    Attributes:
        layout: of all tensors.
        scale: of the scores.
        keep_prob: 1 minus the probability of dropout.
    """

    layout: Layout
    scale: float
    keep_prob: float = 1.0

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> tuple[Attended, Draw]:
        """See `BlockKernel`. Statistics have STATS_WIDTH columns."""
        import torch_npu

        heads, name = q.shape[self.layout.heads], self.layout.name
        out, top, total, _, seed, offset, numels = torch_npu.npu_fusion_attention(
            *(self._pack(x) for x in (q, k, v)),
            heads,
            name,
            scale=self.scale,
            keep_prob=self.keep_prob,
            **self._masking(mask, q),
        )
        out = out.view(*q.shape[:-1], v.shape[-1]) if self.layout is SBND else out
        return Attended(out, top, total), (int(seed), int(offset), int(numels))

    def backward(
        self,
        grad: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        attended: Attended,
        mask: Mask,
        draw: Draw,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `BlockKernel`."""
        import torch_npu

        heads, name = q.shape[self.layout.heads], self.layout.name
        seed, offset, numels = draw
        grads = torch_npu.npu_fusion_attention_grad(
            *(self._pack(x) for x in (q, k, v, grad)),
            heads,
            name,
            softmax_max=attended.top.contiguous(),
            softmax_sum=attended.total.contiguous(),
            attention_in=self._pack(attended.out),
            scale_value=self.scale,
            keep_prob=self.keep_prob,
            seed=seed,
            offset=offset,
            numels=numels,
            **self._masking(mask, q),
        )
        dq, dk, dv = grads[:3]
        return dq.view(q.shape), dk.view(k.shape), dv.view(v.shape)

    def _pack(self, x: Tensor) -> Tensor:
        x = x.contiguous()
        return x.view(*x.shape[:2], -1) if self.layout is SBND else x

    def _masking(self, mask: Mask, q: Tensor) -> dict[str, Any]:
        options: dict[str, Any] = {}
        if self.layout is TND:
            options = {"actual_seq_qlen": mask.query_ends, "actual_seq_kvlen": mask.key_ends}
            options = {name: list(ends) for name, ends in options.items()}
            options["softmax_layout"] = "TND"
        if mask.causal:
            return options | {"atten_mask": _causal_mask(q.device), "sparse_mode": 3}
        if mask.given is not None:
            # Of a general mask, rows of a block may be blank: the operator then gives them 0.
            return options | {
                "atten_mask": mask.given.contiguous(),
                "sparse_mode": 1,
                "inner_precise": _DEFINE_BLANK_ROWS,
            }
        return options


@functools.cache
def _causal_mask(device: torch.device) -> Tensor:
    """The compressed mask of the operator: 4 MiB, once a device."""
    size = (_MASK_SIZE, _MASK_SIZE)
    return torch.ones(size, dtype=torch.bool, device=device).triu_(1)


def require_operator() -> None:
    """Make sure that the operator can run here.

    Raises:
        RuntimeError: there is no NPU, or torch_npu lacks the operator.
    """
    what = "context parallelism with the local attention of Megatron (context_parallel_size > 1)"
    try:
        import torch_npu
    except ImportError as error:
        raise RuntimeError(f"{what} needs torch_npu, which fails to import: {error}") from error
    if not torch_npu.npu.is_available():
        raise RuntimeError(f"{what} needs an NPU, and torch_npu finds none on this machine")
    if not hasattr(torch_npu, "npu_fusion_attention_grad"):
        raise RuntimeError(f"{what} needs torch_npu.npu_fusion_attention_grad: it is too old")
