"""Where heads and softmax statistics lie in the tensors of npu_fusion_attention.

Every layout is cut into sequences, one attention problem each, seen as [N, S, D]. The views are
writable: kernels fill outputs through them.

Dims: B batch, S sequence, N heads, D head width, H = N * D, T tokens of all sequences together.

    BSH [B, S, H]   SBH [S, B, H]   BSND [B, S, N, D]   BNSD [B, N, S, D]   TND [T, N, D]
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ascend_sim.kernels.checks import refuse, require_float, require_same_dtype
from ascend_sim.kernels.rules import require

STATS_WIDTH = 8
"""softmax_max and softmax_sum repeat each value this often in their last dim."""

_NUM_DIMS = {"BSH": 3, "SBH": 3, "BSND": 4, "BNSD": 4, "TND": 3}
_MAX_HEADS = 256
_MAX_HEAD_WIDTH = 768


@dataclass(frozen=True)
class Sequence:
    """One attention problem: queries [query_start, +num_queries) against keys [key_start, +...).

    `index` is the batch entry; the starts count tokens of earlier sequences (TND) and scores of
    earlier sequences (`score_start`, in elements of the dropout mask).
    """

    index: int
    num_queries: int
    num_keys: int
    query_start: int
    key_start: int
    score_start: int


@dataclass(frozen=True)
class AttentionShape:
    """The sizes of one call: value_dim <= head_dim, num_kv_heads divides num_heads."""

    layout: str
    batch: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    value_dim: int
    sequences: tuple[Sequence, ...]

    @property
    def numels(self) -> int:
        """Scores of all heads and sequences: the length of the dropout mask in elements."""
        return self.num_heads * sum(s.num_queries * s.num_keys for s in self.sequences)

    @property
    def max_queries(self) -> int:
        """The longest query sequence."""
        return max(s.num_queries for s in self.sequences)

    @property
    def max_keys(self) -> int:
        """The longest key sequence."""
        return max(s.num_keys for s in self.sequences)


def parse_shape(
    operator: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    head_num: int,
    input_layout: str,
    actual_seq_qlen: list[int] | None,
    actual_seq_kvlen: list[int] | None,
) -> AttentionShape:
    """Read the sizes off the tensors and refuse what the document excludes.

    Raises:
        RuntimeError: unknown layout, wrong number of dims, mixed dtypes, heads that do not divide,
            Dq != Dk, Dv > Dk, a width or head count over the limit, unequal batches, or sequence
            lengths that are missing, not cumulative, or longer than the tensors.
    """
    layout = input_layout.upper()
    require(operator, layout in _NUM_DIMS, f"input_layout {input_layout!r} is not a layout")
    rule = "TND must be written in upper case: lower case skips the varlen checks"
    require(operator, layout != "TND" or input_layout == "TND", rule)
    require_float(operator, query=query, key=key, value=value)
    require_same_dtype(operator, query=query, key=key, value=value)
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        dims = _NUM_DIMS[layout]
        rule = f"{name} must have {dims} dims in {layout}, not {tensor.dim()}"
        require(operator, tensor.dim() == dims, rule)
    heads = _head_sizes(operator, layout, query, key, value, head_num)
    if layout == "TND":
        batch, sequences = _varlen(operator, query, key, value, actual_seq_qlen, actual_seq_kvlen)
    else:
        batch, sq, sk = _dense(operator, layout, query, key, value)
        sequences = [(b, sq, sk, 0, 0) for b in range(batch)]
    built, scores = [], 0
    for b, sq, sk, q0, k0 in sequences:
        built.append(Sequence(b, sq, sk, q0, k0, scores))
        scores += heads[0] * sq * sk
    return AttentionShape(layout, batch, *heads, tuple(built))


def _head_sizes(
    operator: str, layout: str, query: Tensor, key: Tensor, value: Tensor, head_num: int
) -> tuple[int, int, int, int]:
    """(num_heads, num_kv_heads, head_dim, value_dim), checked."""
    require(operator, head_num > 0, f"head_num must be positive, not {head_num}")
    if layout in ("BSH", "SBH"):
        rule = f"H = {query.shape[-1]} must be a multiple of head_num = {head_num}"
        require(operator, query.shape[-1] % head_num == 0 and query.shape[-1] > 0, rule)
        num_heads, width = head_num, query.shape[-1] // head_num
        rule = f"the H of key, {key.shape[-1]}, must be a multiple of the head width {width}"
        require(operator, key.shape[-1] % width == 0 and key.shape[-1] > 0, rule)
        num_kv_heads = value_heads = key.shape[-1] // width
        rule = f"the H of value, {value.shape[-1]}, must be a multiple of its {value_heads} heads"
        require(operator, value.shape[-1] % value_heads == 0, rule)
        key_width, value_width = width, value.shape[-1] // value_heads
    else:
        axis = 2 if layout == "BSND" else 1
        num_heads, num_kv_heads = query.shape[axis], key.shape[axis]
        value_heads = value.shape[axis]
        width, key_width, value_width = query.shape[-1], key.shape[-1], value.shape[-1]
        rule = f"head_num {head_num} must be the number of query heads, {num_heads}"
        require(operator, num_heads == head_num, rule)
    require(operator, width == key_width, f"query and key widths differ: {width}, {key_width}")
    rule = f"the value width {value_width} must be in [1, {key_width}], the key width"
    require(operator, 1 <= value_width <= key_width, rule)
    require(operator, width <= _MAX_HEAD_WIDTH, f"head width {width} is over {_MAX_HEAD_WIDTH}")
    require(operator, num_heads <= _MAX_HEADS, f"{num_heads} heads are over {_MAX_HEADS}")
    require(operator, num_kv_heads == value_heads, "key and value must have the same heads")
    rule = f"{num_heads} query heads must be a multiple of {num_kv_heads} key heads"
    require(operator, num_kv_heads > 0 and num_heads % num_kv_heads == 0, rule)
    return num_heads, num_kv_heads, width, value_width


def _dense(
    operator: str, layout: str, query: Tensor, key: Tensor, value: Tensor
) -> tuple[int, int, int]:
    """(batch, queries, keys) of the layouts with a batch dim."""
    batch_axis = 1 if layout == "SBH" else 0
    sequence_axis = {"BSH": 1, "SBH": 0, "BSND": 1, "BNSD": 2}[layout]
    batches = [t.shape[batch_axis] for t in (query, key, value)]
    require(operator, len(set(batches)) == 1, f"batch sizes differ: {batches}")
    queries, keys, values = (t.shape[sequence_axis] for t in (query, key, value))
    require(operator, keys == values, f"key and value lengths differ: {keys}, {values}")
    require(operator, min(batches[0], queries, keys) > 0, "batch and sequence must not be empty")
    return batches[0], queries, keys


def _varlen(
    operator: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_ends: list[int] | None,
    key_ends: list[int] | None,
) -> tuple[int, list[tuple[int, int, int, int, int]]]:
    """(batch, [(index, queries, keys, query start, key start)]) of TND, trailing zeros ignored."""
    if not query_ends or not key_ends or len(query_ends) != len(key_ends):
        refuse(operator, "TND needs actual_seq_qlen and actual_seq_kvlen, of one length, not empty")
    require(operator, key.shape[0] == value.shape[0], "key and value tokens differ")
    batch = len(query_ends)
    while batch and query_ends[batch - 1] == 0 and key_ends[batch - 1] == 0:
        batch -= 1
    require(operator, batch > 0, "every sequence is empty")
    sequences = []
    query_start = key_start = 0
    for b in range(batch):
        queries, keys = query_ends[b] - query_start, key_ends[b] - key_start
        rule = "sequence lengths are cumulative ends without a leading 0, such as [2, 4, 6]"
        require(operator, queries >= 0 and keys >= 0 and (b > 0 or query_ends[0] > 0), rule)
        sequences.append((b, queries, keys, query_start, key_start))
        query_start, key_start = query_ends[b], key_ends[b]
    rule = f"the lengths end at {query_start} and {key_start}, beyond the tokens given"
    require(operator, query_start <= query.shape[0] and key_start <= key.shape[0], rule)
    return batch, sequences


def view_heads(
    tensor: Tensor,
    shape: AttentionShape,
    sequence: Sequence,
    *,
    num_heads: int,
    start: int,
    length: int,
) -> Tensor:
    """The heads of one sequence as a [num_heads, length, width] view of `tensor`."""
    b = sequence.index
    if shape.layout == "BNSD":
        return tensor[b]
    if shape.layout == "TND":
        return tensor[start : start + length].transpose(0, 1)
    tokens = tensor[:, b] if shape.layout == "SBH" else tensor[b]
    if shape.layout != "BSND":
        tokens = torch.unflatten(tokens, -1, (num_heads, tokens.shape[-1] // num_heads))
    return tokens.transpose(0, 1)


def view_queries(tensor: Tensor, shape: AttentionShape, sequence: Sequence) -> Tensor:
    """[N, Sq, width] of a tensor laid out like the query (also the output and its gradient)."""
    return view_heads(
        tensor,
        shape,
        sequence,
        num_heads=shape.num_heads,
        start=sequence.query_start,
        length=sequence.num_queries,
    )


def view_keys(tensor: Tensor, shape: AttentionShape, sequence: Sequence) -> Tensor:
    """[Nkv, Skv, width] of a tensor laid out like the key (also the value and both gradients)."""
    return view_heads(
        tensor,
        shape,
        sequence,
        num_heads=shape.num_kv_heads,
        start=sequence.key_start,
        length=sequence.num_keys,
    )


def output_sizes(shape: AttentionShape, query: Tensor) -> list[int]:
    """The size of attention_out: the query's, with the value width."""
    last = shape.value_dim if query.dim() == 4 or shape.layout == "TND" else None
    return [*query.shape[:-1], shape.num_heads * shape.value_dim if last is None else last]


def stats_sizes(shape: AttentionShape, query: Tensor) -> list[int]:
    """The size of softmax_max and softmax_sum."""
    if shape.layout == "TND":
        return [query.shape[0], shape.num_heads, STATS_WIDTH]
    return [shape.batch, shape.num_heads, shape.max_queries, STATS_WIDTH]


def view_stats(
    stats: Tensor, shape: AttentionShape, sequence: Sequence, softmax_layout: str
) -> Tensor:
    """[N, Sq, 8] of one sequence, a view of contiguous `stats`.

    In TND the shape says [T, N, 8], but by default each sequence lies there head by head: its
    N * Sq rows are [N, Sq] in memory. Only softmax_layout "TND" stores what the shape says.
    """
    if shape.layout != "TND":
        return stats[sequence.index]
    start, length = sequence.query_start, sequence.num_queries
    if softmax_layout == "TND":
        return stats[start : start + length].transpose(0, 1)
    rows = stats.view(-1, STATS_WIDTH)[start * shape.num_heads : (start + length) * shape.num_heads]
    return rows.view(shape.num_heads, length, STATS_WIDTH)
