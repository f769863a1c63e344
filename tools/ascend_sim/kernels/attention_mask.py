"""Which scores npu_fusion_attention keeps: sparse modes 0 to 8.

With i the query, j the key position, Sq queries, Skv keys (of one sequence), kept are

    0 default       what the mask leaves, which must lie in  -pre <= j - i <= next
    1 all           what the mask leaves
    2 left-up       j <= i
    3 right-down    j <= i + Skv - Sq
    4 band          -pre <= j - (i + Skv - Sq) <= next
    5 prefix        what the mask leaves, which must lie in  mode 3 or j < prefix[b]
    6 prefix        mode 3 or j < prefix[b]
    7 TND           mode 3, the last sequence with queries mode 4
    8 TND           mode 2, the first sequence with keys mode 4

In a mask, true means masked OUT. Modes 0, 1 and 5 take the full mask. Modes 2, 3, 4, 7 and 8 take
the compressed one, 2048 x 2048 with ones above the diagonal, mode 6 one of 3072 x 2048. On the
device a compressed mode without its mask attends everywhere, and with another mask it is wrong
without a word; both are refused here.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from ascend_sim.kernels.attention_layout import AttentionShape, Sequence
from ascend_sim.kernels.checks import refuse
from ascend_sim.kernels.rules import require

_SIDE = 2048
_PREFIX_ROWS = 1024
_FULL_MODES = (0, 1, 5)
_MAX_PREFIX_BATCH = 32
COMPUTE_INVALID_ROWS = 2
"""The value of inner_precise that defines rows with nothing to attend to (their output is 0)."""


@dataclass(frozen=True)
class Masking:
    """The checked mask of one call.

    `mask` is bool and full, None where a rule decides alone. `banded` are the indices of sequences
    that modes 4, 7 and 8 treat as a band.
    """

    mode: int
    mask: Tensor | None
    pre: int
    next: int
    prefix: tuple[int, ...]
    banded: frozenset[int]

    def find_masked(self, sequence: Sequence, heads: slice, rows: slice) -> Tensor | None:
        """Masked scores of query rows `rows`: bool [1 or heads, rows, Skv], None without a mask."""
        if self.mask is not None:
            return _select(self.mask, sequence, heads, rows)
        if self.mode == 0:
            return None
        offsets = _distance(sequence, rows)
        return _rule(self, sequence, offsets).logical_not_().unsqueeze(0)


def _select(mask: Tensor, sequence: Sequence, heads: slice, rows: slice) -> Tensor:
    """The part of a full mask that covers these heads and rows."""
    if mask.dim() == 2:
        return mask[: sequence.num_queries, : sequence.num_keys][rows].unsqueeze(0)
    entry = mask[sequence.index if mask.shape[0] > 1 else 0]
    return entry[heads if entry.shape[0] > 1 else slice(0, 1), rows]


def _distance(sequence: Sequence, rows: slice) -> Tensor:
    """j - i for the query rows, int64 [rows, Skv]."""
    start, stop, _ = rows.indices(sequence.num_queries)
    queries = torch.arange(start, stop, device="cpu").unsqueeze(1)
    return torch.arange(sequence.num_keys, device="cpu") - queries


def _band(distance: Tensor, pre: int, next: int) -> Tensor:
    return (distance >= -pre) & (distance <= next)


def _rule(masking: Masking, sequence: Sequence, distance: Tensor) -> Tensor:
    """Kept scores by rule, bool [rows, Skv], from j - i."""
    mode, shift = masking.mode, sequence.num_keys - sequence.num_queries
    if sequence.index in masking.banded:
        return _band(distance - shift, masking.pre, masking.next)
    if mode in (2, 8):
        return distance <= 0
    right_down = distance <= shift
    if mode in (3, 7):
        return right_down
    in_prefix = torch.arange(sequence.num_keys, device="cpu") < masking.prefix[sequence.index]
    return right_down | in_prefix


def parse_masking(
    operator: str,
    shape: AttentionShape,
    *,
    atten_mask: Tensor | None,
    sparse_mode: int,
    pre: int,
    next: int,
    prefix: list[int] | None,
    inner_precise: int,
) -> Masking:
    """Check the mask arguments of one call against the document.

    Raises:
        RuntimeError: a mode out of range for the layout; a mode other than 0 without a mask; a mask
            of another dtype, shape or content than the mode asks for; a mask that keeps scores
            outside the band or the prefix; a fully masked row that the device does not define; a
            prefix or band out of range.
    """
    varlen = shape.layout == "TND"
    allowed = [0, 1, 2, 3, 4, 6, 7, 8] if varlen else list(range(7))
    rule = f"sparse_mode must be one of {allowed} in {shape.layout}, not {sparse_mode}"
    require(operator, sparse_mode in allowed, rule)
    require(operator, inner_precise in (0, 1, 2), f"inner_precise {inner_precise} is not 0, 1 or 2")
    if atten_mask is None:
        rule = (
            f"sparse_mode {sparse_mode} needs its atten_mask; without one the device ignores the "
            "mode and attends everywhere"
        )
        require(operator, sparse_mode == 0, rule)
        return Masking(0, None, pre, next, (), frozenset())
    rule = f"atten_mask must be bool or uint8, not {atten_mask.dtype}"
    require(operator, atten_mask.dtype in (torch.bool, torch.uint8), rule)
    entries = tuple(prefix or ()) if sparse_mode in (5, 6) else ()
    mask = atten_mask.bool() if sparse_mode in _FULL_MODES else None
    banded = _find_banded(shape, sparse_mode)
    masking = Masking(sparse_mode, mask, pre, next, entries, banded)
    if sparse_mode in (5, 6):
        _check_prefix(operator, shape, entries)
    if mask is not None:
        _check_full(operator, shape, masking, mask, inner_precise)
    else:
        _check_compressed(operator, sparse_mode, atten_mask)
        _check_bands(operator, shape, masking)
    return masking


def _find_banded(shape: AttentionShape, mode: int) -> frozenset[int]:
    """The sequences that are a band: mode 4 all, 7 the last, 8 the first that is not empty."""
    everyone = [s.index for s in shape.sequences]
    if mode == 7:
        with_queries = [s.index for s in shape.sequences if s.num_queries > 0]
        return frozenset(with_queries[-1:] or everyone[-1:])
    if mode == 8:
        with_keys = [s.index for s in shape.sequences if s.num_keys > 0]
        return frozenset(with_keys[:1] or everyone[:1])
    return frozenset(everyone if mode == 4 else ())


def _check_prefix(operator: str, shape: AttentionShape, prefix: tuple[int, ...]) -> None:
    rule = f"prefix must name one length for each of the {shape.batch} sequences"
    require(operator, len(prefix) == shape.batch, rule)
    rule = f"prefix works for at most {_MAX_PREFIX_BATCH} sequences"
    require(operator, shape.batch <= _MAX_PREFIX_BATCH, rule)
    for sequence, length in zip(shape.sequences, prefix, strict=True):
        low = max(0, sequence.num_keys - sequence.num_queries)
        rule = f"prefix {length} must be in [{low}, {sequence.num_keys}]"
        require(operator, low <= length <= sequence.num_keys, rule)


def _check_full(
    operator: str, shape: AttentionShape, masking: Masking, mask: Tensor, inner_precise: int
) -> None:
    """Shape, agreement with the band or prefix, and rows with nothing left."""
    _check_full_shape(operator, shape, masking.mode, mask)
    for sequence in shape.sequences:
        masked = _select(mask, sequence, slice(None), slice(None))
        limit = _limit(masking, sequence)
        if limit is not None and bool((~masked & ~limit).any()):
            refuse(
                operator,
                "the mask keeps scores outside pre_tockens and next_tockens, which the device skips"
                if masking.mode == 0
                else "the mask keeps scores outside the right-down triangle and the prefix",
            )
        if not bool(masked.all(-1).any()):
            continue
        require(operator, shape.layout != "TND", "TND takes no fully masked row")
        rule = (
            "a row of the mask keeps nothing; unless pre_tockens, next_tockens or prefix say so, "
            "the device defines such rows only with inner_precise=2"
        )
        defined = inner_precise == COMPUTE_INVALID_ROWS or _foresees_blank_rows(masking, sequence)
        require(operator, defined, rule)


def _foresees_blank_rows(masking: Masking, sequence: Sequence) -> bool:
    """Whether the device sees from the arguments that rows may keep nothing, and handles them."""
    if masking.mode == 0:
        return masking.next < 0 or masking.pre + sequence.num_keys < sequence.num_queries
    return 0 in masking.prefix


def _limit(masking: Masking, sequence: Sequence) -> Tensor | None:
    """The scores that a full mask may keep, None for all."""
    if masking.mode == 1:
        return None
    if masking.mode == 0:
        if masking.pre >= sequence.num_queries - 1 and masking.next >= sequence.num_keys - 1:
            return None
        return _band(_distance(sequence, slice(None)), masking.pre, masking.next)
    return _rule(masking, sequence, _distance(sequence, slice(None)))


def _check_full_shape(operator: str, shape: AttentionShape, mode: int, mask: Tensor) -> None:
    queries, keys = shape.max_queries, shape.max_keys
    batch, heads = shape.batch, shape.num_heads
    if shape.layout == "TND":
        allowed: list[tuple[int, ...]] = [(queries, keys)]
    elif mode == 5:
        allowed = [(batch, heads, queries, keys), (batch, 1, queries, keys)]
    else:
        leads = [(batch, heads), (batch, 1), (1, 1)]
        allowed = [*((b, n, queries, keys) for b, n in leads), (queries, keys)]
    rule = f"atten_mask {tuple(mask.shape)} must have one of the shapes {sorted(set(allowed))}"
    require(operator, tuple(mask.shape) in allowed, rule)


@lru_cache(maxsize=2)
def _compressed_mask(rows: int) -> Tensor:
    """The mask a compressed mode expects: a triangle, for prefix with a half-filled rectangle."""
    mask = torch.ones(_SIDE, _SIDE, dtype=torch.bool, device="cpu").triu(1)
    if rows == _SIDE:
        return mask
    rectangle = torch.zeros(_PREFIX_ROWS, _SIDE, dtype=torch.bool, device="cpu")
    rectangle[:, _SIDE // 2 :] = True
    return torch.cat([mask, rectangle])


def _check_compressed(operator: str, mode: int, mask: Tensor) -> None:
    rows = _SIDE + _PREFIX_ROWS if mode == 6 else _SIDE
    rule = f"sparse_mode {mode} needs the compressed {rows} x {_SIDE} mask, not {list(mask.shape)}"
    require(operator, list(mask.shape) == [rows, _SIDE], rule)
    rule = f"the compressed mask of sparse_mode {mode} must be ones above the diagonal" + (
        ", then 1024 rows with the right half ones" if mode == 6 else ""
    )
    require(operator, torch.equal(_as_words(mask), _as_words(_compressed_mask(rows))), rule)


def _as_words(mask: Tensor) -> Tensor:
    """Eight bytes as one number: this comparison is in every call of a compressed mode."""
    aligned = mask.is_contiguous() and mask.storage_offset() % 8 == 0
    whole = mask if aligned else mask.clone(memory_format=torch.contiguous_format)
    return whole.view(torch.int64)


def _check_bands(operator: str, shape: AttentionShape, masking: Masking) -> None:
    """The limits on pre_tockens and next_tockens where a sequence is a band."""
    pre, next, mode = masking.pre, masking.next, masking.mode
    banded = [s for s in shape.sequences if s.index in masking.banded]
    for sequence in banded:
        if sequence.num_queries == 0 or sequence.num_keys == 0:
            continue
        rule = f"the band pre_tockens={pre}, next_tockens={next} must meet the score matrix"
        meets = pre + next >= 0 and -pre < sequence.num_queries and -next < sequence.num_keys
        require(operator, meets, rule)
    if len(shape.sequences) > 1 and mode == 7:
        keys = banded[0].num_keys
        rule = f"sparse_mode 7 needs pre_tockens >= {keys} and next_tockens <= 0"
        require(operator, pre >= keys and next <= 0, rule)
    if len(shape.sequences) > 1 and mode == 8:
        keys = banded[0].num_keys
        require(operator, pre >= keys, f"sparse_mode 8 needs pre_tockens >= {keys}")
