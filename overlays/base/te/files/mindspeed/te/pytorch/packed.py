"""Attention inside each of several sequences that lie one after another, in plain torch.

Dims: T tokens of all sequences, n query heads, g key heads, d key width, v value width.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from mindspeed.te.pytorch.dense_attention import Kind, attend_dense, make_masked


@dataclass(frozen=True)
class Packed:
    """Where sequences lie: (start, stop) of their real tokens, of queries and of keys."""

    queries: tuple[tuple[int, int], ...]
    keys: tuple[tuple[int, int], ...]
    tables: tuple[torch.Tensor | None, ...]

    @classmethod
    def read(
        cls, tables: Sequence[torch.Tensor | None], *, num_queries: int, num_keys: int
    ) -> "Packed":
        """Read TransformerEngine's tables; waits for the device.

        Args:
            tables: cu_seqlens_q, cu_seqlens_kv, and those with padding or None.
            num_queries: tokens of the query tensor.
            num_keys: tokens of the key tensor.

        Raises:
            ValueError: a table is missing, or they do not fit each other or the tensors.
        """
        queries = _read_places("cu_seqlens_q", tables[0], tables[2], num_queries)
        keys = _read_places("cu_seqlens_kv", tables[1], tables[3], num_keys)
        if len(queries) != len(keys):
            raise ValueError(f"{len(queries)} packed sequences of queries and {len(keys)} of keys")
        return cls(queries, keys, tuple(tables))


def _read_places(
    name: str, table: torch.Tensor | None, padded: torch.Tensor | None, total: int
) -> tuple[tuple[int, int], ...]:
    if table is None:
        raise ValueError(f"packed sequences (qkv_format thd) need {name}")
    ends = table.tolist()
    starts = ends if padded is None else padded.tolist()
    if len(starts) != len(ends) or starts[-1] > total:
        raise ValueError(f"{name} {ends} and its padded table {starts} do not fit {total} tokens")
    lengths = [stop - start for start, stop in itertools.pairwise(ends)]
    room = [stop - start for start, stop in itertools.pairwise(starts)]
    if any(not 0 <= length <= place for length, place in zip(lengths, room, strict=False)):
        raise ValueError(f"{name} {ends}: a sequence is longer than its place in {starts}")
    return tuple((start, start + length) for start, length in zip(starts, lengths, strict=False))


def attend_packed(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    packed: Packed,
    kind: Kind,
    **settings: Any,
) -> torch.Tensor:
    """Attend inside each sequence.

    Args:
        query: [T, n, d].
        key: [Tk, g, d].
        value: [Tk, g, v].
        packed: where the sequences lie.
        kind: of the mask inside each; padding says nothing here, where lengths are known.
        settings: of `attend_dense`.

    Returns:
        [T, n * v]; 0 for tokens that are padding.
    """
    inside = Kind(kind.name.replace("padding_", "").replace("padding", "no_mask"), kind.window)
    pieces: list[torch.Tensor] = []
    end = 0
    for (start, stop), (key_start, key_stop) in zip(packed.queries, packed.keys, strict=False):
        q = query[start:stop, None]
        k, v = key[key_start:key_stop, None], value[key_start:key_stop, None]
        masked = make_masked(
            inside, None, batch=1, num_queries=len(q), num_keys=len(k), device=q.device
        )
        pieces += [_make_blank(query, value, start - end)]
        pieces += [attend_dense(q, k, v, masked=masked, **settings)[:, 0]]
        end = stop
    return torch.cat([*pieces, _make_blank(query, value, len(query) - end)])


def _make_blank(query: torch.Tensor, value: torch.Tensor, tokens: int) -> torch.Tensor:
    return query.new_zeros(tokens, query.shape[1] * value.shape[2])
