"""Where packed sequences begin and end, for ranks that hold two chunks of each.

Megatron and TransformerEngine cut each packed sequence, with its padding, into 2p chunks. A causal
mask needs no more than these lengths: padding comes after the tokens of its sequence, which never
see it. Without a causal mask the tokens would see the padding, so there must be none.
"""

import itertools
from typing import Any

import torch

_KEPT = "_mindspeed_context_parallel"


def read_starts(params: Any, *, length: int, num_ranks: int, causal: bool) -> tuple[int, ...]:
    """Cumulative lengths of the packed sequences, with a leading 0, up to the last row.

    Reading them waits for the device once; layers that get the same object share the result.

    Args:
        params: PackedSeqParams in thd format, with or without the padded fields.
        length: rows of all ranks.
        num_ranks: p.
        causal: whether the mask is.

    Raises:
        ValueError: another format, no lengths, lengths that do not fit, are no multiple of 2p, or
            have padding that the mask does not hide.
    """
    tables = (params.cu_seqlens_q, getattr(params, "cu_seqlens_q_padded", None))
    versions = tuple(None if t is None else (t.data_ptr(), t._version) for t in tables)
    kept = vars(params).get(_KEPT)
    if kept is not None and kept[0] == (versions, length, num_ranks, causal):
        found: tuple[int, ...] = kept[1]
        return found
    starts = _read(params, *tables, length, num_ranks, causal)
    vars(params)[_KEPT] = ((versions, length, num_ranks, causal), starts)
    return starts


def _read(
    params: Any,
    real: torch.Tensor | None,
    padded: torch.Tensor | None,
    length: int,
    num_ranks: int,
    causal: bool,
) -> tuple[int, ...]:
    if params.qkv_format != "thd":
        raise ValueError(f"packed sequences must be in thd format, not {params.qkv_format!r}")
    if real is None:
        raise ValueError("packed sequences need cu_seqlens_q")
    ends = (real if padded is None else padded).tolist()
    has_padding = padded is not None and padded is not real and real.tolist() != ends
    if has_padding and not causal:
        raise ValueError(
            "packed sequences with padding need a causal mask under context parallelism: without "
            "one their tokens would see the padding"
        )
    # Sequences without rows, as fixed-size tables have at their end, are none.
    starts = [start for i, start in enumerate(ends) if i == 0 or start != ends[i - 1]]
    if starts[0] != 0 or starts != sorted(starts) or starts[-1] > length:
        raise ValueError(f"cu_seqlens {ends} do not begin with 0, or do not fit {length} rows")
    if starts[-1] < length:
        if not causal:
            raise ValueError(f"cu_seqlens end at {starts[-1]}, before the last of {length} rows")
        starts.append(length)
    chunks = 2 * num_ranks
    wrong = [b - a for a, b in itertools.pairwise(starts) if (b - a) % chunks]
    if wrong:
        raise ValueError(
            f"packed sequences of {wrong[:4]} rows cannot be cut into {chunks} chunks: each must "
            f"be padded to a multiple of 2 * context_parallel_size"
        )
    return tuple(starts)
