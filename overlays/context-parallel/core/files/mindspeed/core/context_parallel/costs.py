"""What context parallelism costs one rank and one layer: bytes, messages, kept activations, work.

For planners: no torch, no Megatron. Measured equal on the simulated device by the project's tests.

Formulas, with l = s / p rows a rank and B = l b g (d + v) elements of one block of keys and values:

    algorithm        forward                                        backward
    ring             (p-1) B                                        2 (p-1) B
    double ring      (p-1) B                                        2 (p-1) B
    kv-all-gather    (p-1) B                                        2 (p-1) B
    ulysses          (p-1)/p l b (n d + g' (d + v) + n v)           the same
    hybrid           (u-1)/u l b (n d + g' (d + v) + n v)           the same
                     + (r-1) l b g' (d + v)                         + 2 (r-1) l b g' (d + v)
    adaptive         k B + m b (n + g) (d + v)                      2 k B + m b (n + g) (d + v)

k are the ranks that need this rank's block, m the rows of it that move to another rank. g' are the
key heads after repetition: lcm(g, p) for Ulysses, lcm(g, u) for the hybrid. Backward, a
ring and the all-gather move blocks again and gradients once; what was kept does not move again.

Dims: s rows of the whole sequence, b batch, n heads and g key heads of one tensor-parallel rank, d
width of queries and keys, v width of values, p ranks, p = u r in the hybrid.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """One layer's attention.

    Attributes:
        length: s.
        batch: b.
        heads: n, of one tensor-parallel rank.
        key_heads: g, of one tensor-parallel rank.
        width: d.
        value_width: v.
        element_bytes: of queries, keys and values.
    """

    length: int
    batch: int
    heads: int
    key_heads: int
    width: int
    value_width: int
    element_bytes: int = 2


@dataclass(frozen=True)
class Cost:
    """Of one rank and one layer.

    Attributes:
        forward_bytes: sent in the forward pass.
        backward_bytes: sent in the backward pass.
        forward_messages: sends, or collectives.
        backward_messages: likewise.
        kept_bytes: kept from the forward pass for the backward pass: queries, keys, values, output,
            two float32 statistics a row and head, and blocks that were asked to be kept.
        visiting_bytes: keys and values of other ranks that are here at once, at most, beside those
            that are kept.
    """

    forward_bytes: int
    backward_bytes: int
    forward_messages: int
    backward_messages: int
    kept_bytes: int
    visiting_bytes: int


def cost_ring(shape: Shape, num_ranks: int, *, keep: str = "", window: int = 1) -> Cost:
    """Ring attention, plain or double.

    Args:
        shape: of the layer.
        num_ranks: p.
        keep: what of visiting blocks is kept: "", "half" (keys) or "full".
        window: of a double ring; while a window's blocks go round, the next ones arrive.
    """
    p, block = num_ranks, _block_bytes(shape, num_ranks)
    rows = shape.length // p * shape.batch * shape.key_heads * shape.element_bytes
    again = {"": block, "half": rows * shape.value_width, "full": 0}[keep]
    visitors = min(p - 1, 2 if window == 1 else 3)
    return Cost(
        forward_bytes=(p - 1) * block,
        backward_bytes=(p - 1) * (again + block),
        forward_messages=p - 1,
        backward_messages=(p - 1) * (1 if keep == "full" else 2),
        kept_bytes=_kept_bytes(shape, p) + (p - 1) * (block - again),
        visiting_bytes=(p - 1 if keep else visitors) * block,
    )


def cost_kv_allgather(shape: Shape, num_ranks: int, *, keep: str = "") -> Cost:
    """Gathered keys and values: all are here at once, and once more while they are ordered."""
    p, block = num_ranks, _block_bytes(shape, num_ranks)
    keys = shape.length * shape.batch * shape.key_heads * shape.width * shape.element_bytes
    values = p * block - keys
    again = {"": block, "half": values // p, "full": 0}[keep]
    return Cost(
        forward_bytes=(p - 1) * block,
        backward_bytes=(p - 1) * (again + block),
        forward_messages=1,
        backward_messages=1 if keep == "full" else 2,
        kept_bytes=_kept_bytes(shape, p) + {"": 0, "half": keys, "full": keys + values}[keep],
        visiting_bytes=2 * p * block,
    )


def cost_ulysses(shape: Shape, num_ranks: int) -> Cost:
    """Ulysses: every rank has all rows of its heads, as many elements as before."""
    moved = _exchanged_bytes(shape, num_ranks, num_ranks)
    return Cost(
        forward_bytes=moved,
        backward_bytes=moved,
        forward_messages=2,
        backward_messages=2,
        kept_bytes=_kept_bytes(shape, num_ranks, key_heads=math.lcm(shape.key_heads, num_ranks)),
        visiting_bytes=0,
    )


def cost_hybrid(
    shape: Shape, num_ranks: int, ulysses: int, *, keep: str = "", window: int = 1
) -> Cost:
    """Ulysses over u neighbours, a ring over the other r = p / u."""
    u, ring = ulysses, num_ranks // ulysses
    moved = _exchanged_bytes(shape, num_ranks, u)
    inner = Shape(
        shape.length,
        shape.batch,
        shape.heads // u,
        math.lcm(shape.key_heads, u) // u,
        shape.width,
        shape.value_width,
        shape.element_bytes,
    )
    rings = cost_ring(inner, ring, keep=keep, window=window)
    return Cost(
        forward_bytes=moved + rings.forward_bytes,
        backward_bytes=moved + rings.backward_bytes,
        forward_messages=2 + rings.forward_messages,
        backward_messages=2 + rings.backward_messages,
        kept_bytes=rings.kept_bytes,
        visiting_bytes=rings.visiting_bytes,
    )


def cost_adaptive(shape: Shape, num_ranks: int, *, blocks: int, moved: int = 0) -> Cost:
    """A ring that follows a sparse mask.

    Args:
        shape: of the layer.
        num_ranks: p, of the ring.
        blocks: how many other ranks this rank's block goes to, and blocks of others it needs.
        moved: rows that leave this rank before the attention, and come back after it.
    """
    p, block = num_ranks, _block_bytes(shape, num_ranks)
    heads = shape.heads + shape.key_heads
    moving = moved * shape.batch * heads * (shape.width + shape.value_width) * shape.element_bytes
    trades = 2 if moved else 0
    return Cost(
        forward_bytes=blocks * block + moving,
        backward_bytes=2 * blocks * block + moving,
        forward_messages=blocks + trades,
        backward_messages=2 * blocks + trades,
        kept_bytes=_kept_bytes(shape, p),
        visiting_bytes=min(blocks, 2) * block,
    )


def count_scores(length: int, num_ranks: int, rank: int, *, causal: bool) -> int:
    """(query, key) pairs that are not masked, of a rank and head; under zigzag the same for all.

    Causal: two triangles of chunks, and the whole chunks before them: s (s + 1) / 2 / p.
    """
    if not causal:
        return length // num_ranks * length
    chunk = length // (2 * num_ranks)
    first, last = rank, 2 * num_ranks - 1 - rank
    whole = chunk * chunk * (first + last)
    return whole + chunk * (chunk + 1)


def _block_bytes(shape: Shape, num_ranks: int) -> int:
    """B."""
    rows = shape.length // num_ranks * shape.batch
    return rows * shape.key_heads * (shape.width + shape.value_width) * shape.element_bytes


def _exchanged_bytes(shape: Shape, num_ranks: int, ulysses: int) -> int:
    rows = shape.length // num_ranks * shape.batch
    repeated = math.lcm(shape.key_heads, ulysses)
    widths = shape.heads * (shape.width + shape.value_width)
    widths += repeated * (shape.width + shape.value_width)
    return rows * widths * shape.element_bytes // ulysses * (ulysses - 1)


def _kept_bytes(shape: Shape, num_ranks: int, *, key_heads: int | None = None) -> int:
    rows = shape.length // num_ranks * shape.batch
    heads = shape.heads + (key_heads or shape.key_heads)
    statistics = 2 * 4 * rows * shape.heads
    return rows * heads * (shape.width + shape.value_width) * shape.element_bytes + statistics
