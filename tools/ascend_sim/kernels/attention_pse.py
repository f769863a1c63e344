"""Position bias of npu_fusion_attention: pse types 0 to 3.

    0   scale * Q K^T + pse          pse given, in the dtype of the query
    1   scale * (Q K^T + pse)        pse given, in the dtype of the query; what v1 and v3 do
    2   scale * Q K^T - slope * d    slope given, float32 [N] or [B, N]
    3   scale * Q K^T - slope * sqrt(d)

with d = |(j + kv_start_idx) - (i + q_start_idx)|, so that a block of a longer sequence gets its
part of the global bias.

A given pse is [B, N, Sq, Skv], [1, N, Sq, Skv] or [B, N, 1, Skv]. For a causal ALiBi bias, which
depends on j - i only, the last 1024 rows are enough: [B or 1, N, 1024, Skv]. TND takes only that.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ascend_sim.kernels.attention_layout import AttentionShape, Sequence
from ascend_sim.kernels.checks import refuse
from ascend_sim.kernels.rules import require

_COMPRESSED_ROWS = 1024
_CAUSAL_MODES = (0, 2, 3)


@dataclass(frozen=True)
class Pse:
    """The checked bias of one call. `compressed` marks the 1024-row form."""

    kind: int
    tensor: Tensor
    compressed: bool
    query_origin: int
    key_origin: int

    @property
    def added_before_scale(self) -> bool:
        """Whether the scale multiplies the bias too."""
        return self.kind == 1

    def block(self, sequence: Sequence, heads: slice, rows: slice) -> Tensor:
        """The bias of these heads and query rows, float32, broadcastable to [heads, rows, Skv]."""
        if self.kind in (2, 3):
            slopes = self.tensor if self.tensor.dim() == 1 else self.tensor[sequence.index]
            return -slopes[heads].float().view(-1, 1, 1) * self._distance(sequence, rows)
        entry = self.tensor[sequence.index if self.tensor.shape[0] > 1 else 0, heads]
        if self.compressed:
            row, column = self._compressed_index(sequence, rows)
            return entry[:, row, column].float()
        return entry[:, rows if entry.shape[1] > 1 else slice(0, 1)].float()

    def add_gradient(
        self, total: Tensor, gradient: Tensor, sequence: Sequence, heads: slice, rows: slice
    ) -> None:
        """Add the gradient of one block ([heads, rows, Skv]) to `total`, shaped like the pse."""
        if self.kind in (2, 3):
            return
        entry = total[sequence.index if total.shape[0] > 1 else 0, heads]
        if self.compressed:
            row, column = self._compressed_index(sequence, rows)
            flat = (row * entry.shape[-1] + column).flatten()
            entry.flatten(1).index_add_(1, flat, gradient.flatten(1))
        elif entry.shape[1] > 1 or gradient.shape[1] == sequence.num_queries == 1:
            entry[:, rows] += gradient
        else:
            entry += gradient.sum(1, keepdim=True)

    def _distance(self, sequence: Sequence, rows: slice) -> Tensor:
        start, stop, _ = rows.indices(sequence.num_queries)
        shift = self.key_origin - self.query_origin
        i = torch.arange(start, stop, device="cpu").unsqueeze(1)
        distance = (torch.arange(sequence.num_keys, device="cpu") + shift - i).abs().float()
        return distance.sqrt() if self.kind == 3 else distance

    def _compressed_index(self, sequence: Sequence, rows: slice) -> tuple[Tensor, Tensor]:
        """Where the 1024-row form holds (i, j): earlier rows slide down the diagonal into it."""
        start, stop, _ = rows.indices(sequence.num_queries)
        num_columns = self.tensor.shape[-1]
        first_row = num_columns - _COMPRESSED_ROWS
        i = torch.arange(start, stop, device="cpu").unsqueeze(1)
        shift = (first_row - i).clamp(min=0)
        column = torch.arange(sequence.num_keys, device="cpu") + shift
        row = (i + shift - first_row).expand_as(column)
        # Past the last column lie only scores above the diagonal, which a causal mask removes.
        return row, column.clamp(max=num_columns - 1)


def parse_pse(
    operator: str,
    shape: AttentionShape,
    query: Tensor,
    *,
    pse: Tensor | None,
    pse_type: int,
    sparse_mode: int,
    q_start_idx: list[int] | None,
    kv_start_idx: list[int] | None,
) -> Pse | None:
    """Check the bias arguments of one call.

    Raises:
        RuntimeError: an unknown type; a dtype or shape the type does not take; types 2 and 3 with
            Sq != Skv; any pse with sparse modes 7 and 8 or with an empty sequence.
    """
    require(operator, pse_type in (0, 1, 2, 3), f"pse_type must be 0 to 3, not {pse_type}")
    if pse is None:
        require(operator, pse_type < 2, f"pse_type {pse_type} needs its slopes in pse")
        return None
    rule = f"sparse_mode {sparse_mode} takes no pse"
    require(operator, sparse_mode not in (7, 8), rule)
    empty = any(s.num_queries == 0 or s.num_keys == 0 for s in shape.sequences)
    require(operator, not empty, "pse is not supported with an empty sequence")
    square = all(s.num_queries == s.num_keys for s in shape.sequences)
    if pse_type < 2:
        require(operator, pse.dtype == query.dtype, f"pse must be {query.dtype}, not {pse.dtype}")
        compressed = _check_bias_shape(
            operator, shape, pse, square and sparse_mode in _CAUSAL_MODES
        )
        return Pse(pse_type, pse, compressed, 0, 0)
    require(operator, pse.dtype == torch.float32, f"slopes must be float32, not {pse.dtype}")
    allowed = [(shape.num_heads,), (shape.batch, shape.num_heads)]
    rule = f"slopes {tuple(pse.shape)} must have one of the shapes {allowed}"
    require(operator, tuple(pse.shape) in allowed, rule)
    require(operator, square, f"pse_type {pse_type} needs as many queries as keys")
    query_origin = _origin(operator, "q_start_idx", q_start_idx)
    return Pse(pse_type, pse, False, query_origin, _origin(operator, "kv_start_idx", kv_start_idx))


def _origin(operator: str, name: str, index: list[int] | None) -> int:
    """The single entry of q_start_idx or kv_start_idx, 0 when not given."""
    if not index:
        return 0
    require(operator, len(index) == 1, f"{name} takes one entry, not {len(index)}")
    return index[0]


def _check_bias_shape(
    operator: str, shape: AttentionShape, pse: Tensor, may_compress: bool
) -> bool:
    """Return whether the bias is the 1024-row form."""
    batch, heads = shape.batch, shape.num_heads
    queries, keys = shape.max_queries, shape.max_keys
    compressed = [(b, heads, _COMPRESSED_ROWS, keys) for b in (batch, 1)]
    varlen = shape.layout == "TND"
    if may_compress and (varlen or queries > _COMPRESSED_ROWS) and tuple(pse.shape) in compressed:
        return True
    if varlen:
        refuse(
            operator,
            f"TND takes pse only as the last {_COMPRESSED_ROWS} rows of a causal ALiBi bias, "
            f"{compressed}, with equal query and key lengths and sparse_mode 0, 2 or 3",
        )
    allowed = [(batch, heads, queries, keys), (1, heads, queries, keys), (batch, heads, 1, keys)]
    rule = f"pse {tuple(pse.shape)} must have one of the shapes {allowed}"
    require(operator, tuple(pse.shape) in allowed, rule)
    return False
