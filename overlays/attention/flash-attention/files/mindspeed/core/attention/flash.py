"""Attention as one Ascend operator: npu_fusion_attention, for every mask that it can express.

    out = dropout(softmax(scale * Q K^T + bias, masked)) V

The operator never writes the score matrix; it keeps two numbers a row and computes the scores anew
in the backward pass. Softmax is computed in fp32 whatever the dtype. (Operator page: torch_npu API
reference, `torch_npu.npu_fusion_attention`. Method: FlashAttention, arXiv 2307.08691.)

Which scores are kept is a `Masking`. Causal, band and bottom-right masks share one compressed
2048 x 2048 triangle per device, whatever the sequence length.

Dims: s queries, t keys, b batch, n query heads, g key heads (g divides n), d key width, v value
width, T tokens of all packed sequences.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from mindspeed.core.attention.packing import Packing

_SIDE = 2048
_UNBOUNDED = 2147483647

# Values of the operator's sparse_mode.
_ALL, _LEFT_UP, _RIGHT_DOWN, _BAND = 1, 2, 3, 4

# Value of inner_precise that defines rows with nothing to attend to: their output is 0.
_DEFINE_EMPTY_ROWS = 2


@dataclass(frozen=True)
class Masking:
    """Which scores attention keeps. Make one with the functions below.

    `mask` is the whole mask, true where a score is dropped; the other kinds need none.
    """

    sparse_mode: int = 0
    mask: torch.Tensor | None = None
    before: int = _UNBOUNDED
    after: int = _UNBOUNDED


@dataclass(frozen=True)
class Bias:
    """What is added to the scaled scores, by the second version of the operator.

    `kind` 0: `tensor` itself, in the dtype of query, [1, n, s, t], or of causal attention over more
    than 1024 tokens its last 1024 rows. `kind` 2: minus the distance of query and key times the
    head's slope, `tensor` fp32 [n]; for as many queries as keys.
    """

    kind: int
    tensor: torch.Tensor


def keep_all() -> Masking:
    """Every query attends to every key."""
    return Masking()


def keep_causal(*, bottom_right: bool = False) -> Masking:
    """Query i attends to keys j <= i; with `bottom_right` to j <= i + (t - s)."""
    return Masking(_RIGHT_DOWN if bottom_right else _LEFT_UP)


def keep_band(before: int, after: int) -> Masking:
    """Query i attends to keys j with -before <= j - (i + t - s) <= after; negative: no limit."""
    limits = [_UNBOUNDED if limit < 0 else limit for limit in (before, after)]
    return Masking(_BAND, None, *limits) if min(limits) < _UNBOUNDED else Masking()


def keep_unmasked(mask: torch.Tensor, *, batch: int, num_queries: int, num_keys: int) -> Masking:
    """What a mask leaves. A row that keeps nothing gets 0.

    Args:
        mask: bool, true where a score is dropped; broadcasts to [b, n, s, t] and is the same for
            every head.
        batch: b.
        num_queries: s.
        num_keys: t.

    Raises:
        ValueError: another dtype, or a shape that does not broadcast.
    """
    if mask.dtype is not torch.bool:
        raise ValueError(f"attention_mask must be bool, true where masked, not {mask.dtype}")
    leading = [1] * (4 - mask.dim())
    shape = [*leading, *mask.shape]
    wanted = (batch, 1, num_queries, num_keys)
    if len(shape) != 4 or any(n not in (1, m) for n, m in zip(shape, wanted, strict=True)):
        raise ValueError(
            f"attention_mask of shape {list(mask.shape)} does not broadcast to {list(wanted)}"
        )
    full = mask.view(shape).expand(shape[0], 1, num_queries, num_keys)
    return Masking(_ALL, full)


def flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    scale: float,
    masking: Masking,
    dropout: float = 0.0,
    sink: torch.Tensor | None = None,
    version: int = 1,
    bias: Bias | None = None,
) -> torch.Tensor:
    """Attention of a batch of equally long sequences.

    Args:
        query: [s, b, n, d], on an NPU, fp16, bf16 or fp32.
        key: [t, b, g, d], same dtype.
        value: [t, b, g, v], v <= d.
        scale: of the scores.
        masking: which scores are kept.
        dropout: probability; the mask comes from the device's current random state.
        sink: [n], a logit of each head that takes part in the softmax and carries no value.
        version: of the operator, 1 or 2.
        bias: added to the scaled scores; needs version 2.

    Returns:
        [s, b, n * v], the dtype of query. Kept for the backward pass: the arguments, the result,
        and 64 bytes a row and head.

    Raises:
        ValueError: values are wider than keys.
    """
    heads = query.shape[2]
    _check_widths(key, value)
    out: torch.Tensor = _run_operator(
        *(x.reshape(*x.shape[:2], -1) for x in (query, key, value)),
        heads, "SBH", masking, scale, dropout, sink, version, bias,
    )  # fmt: skip
    return out


def flash_attention_packed(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    packing: Packing,
    scale: float,
    masking: Masking,
    dropout: float = 0.0,
    sink: torch.Tensor | None = None,
    version: int = 1,
    bias: Bias | None = None,
) -> torch.Tensor:
    """Attention inside each of several sequences that lie one after another.

    Args:
        query: [T, n, d], on an NPU, fp16, bf16 or fp32.
        key: [Tk, g, d], same dtype.
        value: [Tk, g, v], v <= d.
        packing: where the sequences end, and which tokens are padding.
        scale: of the scores.
        masking: which scores are kept in each sequence; a mask tensor cannot be used here.
        dropout: probability; the mask comes from the device's current random state.
        sink: [n], see `flash_attention`.
        version: of the operator, 1 or 2.
        bias: of kind 2.

    Returns:
        [T, n * v], the dtype of query; 0 for tokens that are padding.

    Raises:
        ValueError: `masking` is a mask tensor, or values are wider than keys.
    """
    _check_widths(key, value)
    if masking.mask is not None:
        raise ValueError("packed sequences take no attention_mask: their mask type says it all")
    out = _run_operator(
        query.contiguous(), key.contiguous(), value.contiguous(),
        query.shape[1], "TND", masking, scale, dropout, sink, version, bias,
        actual_seq_qlen=packing.query_ends, actual_seq_kvlen=packing.key_ends,
    )  # fmt: skip
    if packing.padding is not None:
        out = out.masked_fill(packing.padding[:, None, None], 0)
    return out.reshape(out.shape[0], -1)


def _check_widths(key: torch.Tensor, value: torch.Tensor) -> None:
    if value.shape[-1] > key.shape[-1]:
        raise ValueError(
            f"values of width {value.shape[-1]} are wider than keys of width {key.shape[-1]}, "
            "which npu_fusion_attention does not take"
        )


def _run_operator(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    heads: int,
    layout: str,
    masking: Masking,
    scale: float,
    dropout: float,
    sink: torch.Tensor | None,
    version: int,
    bias: Bias | None,
    **lengths: list[int],
) -> Any:
    import torch_npu

    mask, inner_precise = masking.mask, _DEFINE_EMPTY_ROWS
    if mask is None:
        inner_precise = 0
        mask = compressed_triangle(query.device) if masking.sparse_mode else None
    extra: dict[str, Any] = dict(lengths)
    if sink is not None:  # torch_npu before 2.9 has no such argument
        extra["sink"] = sink.to(device=query.device, dtype=torch.float32)
    if bias is not None:
        extra.update(pse=bias.tensor, pse_type=bias.kind)
    limits = (masking.before, masking.after)
    if version == 2:
        extra.update(zip(("pre_tokens", "next_tokens"), limits, strict=True))
        operator = torch_npu.npu_fusion_attention_v2
    else:
        extra.update(zip(("pre_tockens", "next_tockens"), limits, strict=True))
        operator = torch_npu.npu_fusion_attention
    return operator(
        query,
        key,
        value,
        heads,
        layout,
        atten_mask=mask,
        scale=scale,
        keep_prob=1.0 - dropout,
        inner_precise=inner_precise,
        sparse_mode=masking.sparse_mode,
        **extra,
    )[0]


@cache
def compressed_triangle(device: torch.device) -> torch.Tensor:
    """The mask that every compressed mode reads: 2048 x 2048, true above the diagonal, 4 MiB.

    One for each device and process. The operator reads the mode's own shape out of it.
    """
    # Made in inference mode it could not be saved for a later backward pass.
    with torch.inference_mode(False):
        return torch.ones(_SIDE, _SIDE, dtype=torch.bool, device=device).triu_(1)
