"""Where packed sequences end, as the operator wants it: on the host, with padding made explicit.

Megatron says where sequences lie in one tensor of tokens: `cu_seqlens` counts real tokens,
`cu_seqlens_padded`, where given, the places they take. The operator knows no gaps. So the padding
behind each sequence becomes a sequence of its own: real tokens never see it, for any mask.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

_KEPT = "_mindspeed_packing"
_FIELDS = ("cu_seqlens_q", "cu_seqlens_kv", "cu_seqlens_q_padded", "cu_seqlens_kv_padded")


@dataclass(frozen=True)
class Packing:
    """Sequences of queries and of keys, the same number of each.

    `query_ends` and `key_ends` are cumulative, without a leading 0. `padding` is bool [T], true for
    tokens of query that belong to no sequence; None where there are none.
    """

    query_ends: list[int]
    key_ends: list[int]
    padding: torch.Tensor | None = None


def read_packing(params: Any, *, num_queries: int, num_keys: int) -> Packing:
    """The packing that Megatron's PackedSeqParams describes.

    Reading it waits for the device once; layers that get the same object share the result.

    Args:
        params: PackedSeqParams in thd format, with or without the padded fields.
        num_queries: tokens of the query tensor; those behind the last sequence are padding.
        num_keys: tokens of the key tensor.

    Raises:
        ValueError: another format, no lengths, or lengths that do not fit the tensors.
    """
    sources = tuple(getattr(params, name, None) for name in _FIELDS)
    versions = tuple(None if source is None else source._version for source in sources)
    kept = vars(params).get(_KEPT)
    if kept is not None:
        same = all(a is b for a, b in zip(kept[0], sources, strict=True))
        if same and kept[1:3] == (versions, (num_queries, num_keys)):
            packing: Packing = kept[3]
            return packing
    if params.qkv_format != "thd":
        raise ValueError(f"packed sequences must be in thd format, not {params.qkv_format!r}")
    packing = make_packing(*_read_ends(sources), num_queries=num_queries, num_keys=num_keys,
                           device=sources[0].device)  # fmt: skip
    vars(params)[_KEPT] = (sources, versions, (num_queries, num_keys), packing)
    return packing


def _read_ends(sources: Sequence[torch.Tensor | None]) -> list[list[int]]:
    """The four tables on the host; a padded one that is not given is the other one."""
    queries, keys, padded_queries, padded_keys = sources
    if queries is None or keys is None:
        raise ValueError("packed sequences need cu_seqlens_q and cu_seqlens_kv")
    # Often the same tensor four times: one copy to the host for each different one.
    found: dict[int, list[int]] = {}
    chosen = (
        queries,
        keys,
        queries if padded_queries is None else padded_queries,
        keys if padded_keys is None else padded_keys,
    )
    for table in chosen:
        if id(table) not in found:
            found[id(table)] = table.tolist()
    return [found[id(table)] for table in chosen]


def make_packing(
    queries: list[int],
    keys: list[int],
    padded_queries: list[int],
    padded_keys: list[int],
    *,
    num_queries: int,
    num_keys: int,
    device: torch.device,
) -> Packing:
    """Turn Megatron's tables (with their leading 0) into a packing; see `read_packing`."""
    tables = (queries, keys, padded_queries, padded_keys)
    if len({len(table) for table in tables}) != 1 or len(queries) < 2:
        sizes = [len(table) for table in tables]
        raise ValueError(f"cu_seqlens must have one length of at least 2, they have {sizes}")
    if padded_queries[-1] > num_queries or padded_keys[-1] > num_keys:
        raise ValueError(
            f"packed sequences end at {padded_queries[-1]} and {padded_keys[-1]}, "
            f"beyond the {num_queries} queries and {num_keys} keys"
        )
    pieces = list(
        zip(
            _cut(queries, padded_queries, num_queries),
            _cut(keys, padded_keys, num_keys),
            strict=True,
        )
    )
    query_ends, key_ends, gaps = [], [], []
    query_end = key_end = 0
    for number, (query_length, key_length) in enumerate(pieces):
        if query_length < 0 or key_length < 0:
            raise ValueError(f"cu_seqlens: sequence {number // 2} is longer than its place")
        if not query_length and not key_length:
            continue
        if number % 2 and query_length:
            gaps.append((query_end, query_end + query_length))
        query_end, key_end = query_end + query_length, key_end + key_length
        query_ends.append(query_end)
        key_ends.append(key_end)
    return Packing(query_ends, key_ends, _mark(gaps, num_queries, device))


def _cut(ends: list[int], padded: list[int], total: int) -> list[int]:
    """Lengths: sequence, its padding, sequence, its padding, and what is left behind the last."""
    lengths = []
    for k in range(len(ends) - 1):
        length = ends[k + 1] - ends[k]
        lengths += [length, padded[k + 1] - padded[k] - length]
    lengths[-1] += total - padded[-1]
    return lengths


def _mark(gaps: list[tuple[int, int]], total: int, device: torch.device) -> torch.Tensor | None:
    if not gaps:
        return None
    marks = torch.zeros(total, dtype=torch.bool, device="cpu")
    for start, stop in gaps:
        marks[start:stop] = True
    return marks.to(device)
