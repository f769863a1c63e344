"""Attention in plain torch, with the mask of every kind that TransformerEngine names.

    out = dropout(softmax(scale * Q K^T + bias, masked)) V

The score matrix is written out: memory grows with s * t. Scores and probabilities have the dtype
of the inputs, the softmax is computed in fp32. A row with nothing to attend to gives 0.

Dims: s queries, t keys, b batch, n query heads, g key heads (g divides n), d key width, v value
width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

Mask = torch.Tensor | tuple[torch.Tensor, torch.Tensor] | None


@dataclass(frozen=True)
class Kind:
    """A mask as TransformerEngine describes it.

    `window` is (left, right): query i sees keys from i - left to i + right, negative for no limit.
    A causal mask and the window of one start at the top left corner of the scores, or at the
    bottom right one; a window alone starts at the bottom right.
    """

    name: str
    window: tuple[int, int] = (-1, -1)

    @property
    def is_causal(self) -> bool:
        """Whether queries see no later keys."""
        return "causal" in self.name

    @property
    def is_padding(self) -> bool:
        """Whether some tokens are padding."""
        return "padding" in self.name

    @property
    def is_bottom_right(self) -> bool:
        """Where the diagonal ends."""
        return "bottom_right" in self.name or not self.is_causal

    @property
    def band(self) -> tuple[int, int]:
        """The window, with what causal adds."""
        return (self.window[0], 0) if self.is_causal else self.window


_NAMES = (
    "no_mask", "padding", "causal", "padding_causal", "causal_bottom_right",
    "padding_causal_bottom_right", "arbitrary",
)  # fmt: skip


def make_kind(name: str, window: Sequence[int] | None = None) -> Kind:
    """Read TransformerEngine's `attn_mask_type` and `window_size`.

    Raises:
        ValueError: another name.
    """
    found = name.replace(",", "_")
    found = "padding_causal" if found == "causal_padding" else found
    if found not in _NAMES:
        raise ValueError(f"attn_mask_type must be one of {', '.join(_NAMES)}, not {name!r}")
    return Kind(found, (-1, -1) if window is None else (int(window[0]), int(window[1])))


def attend_dense(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    scale: float,
    masked: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    dropout: float = 0.0,
    layer_number: int = 1,
) -> torch.Tensor:
    """Attention of a batch of equally long sequences.

    Args:
        query: [s, b, n, d].
        key: [t, b, g, d].
        value: [t, b, g, v].
        scale: of the scores.
        masked: bool, true where a score is dropped; broadcasts to [b, n, s, t].
        bias: added to the scaled scores; broadcasts to [b, n, s, t].
        dropout: probability; the mask comes from the device's current random state.
        layer_number: scores are kept in the inputs' dtype divided by it, which fp16 may need.

    Returns:
        [s, b, n * v].
    """
    heads = query.shape[2]
    q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))  # [b, heads, tokens, width]
    k, v = (x.repeat_interleave(heads // x.shape[1], dim=1) for x in (k, v))
    scores = _score(q, k, scale / layer_number).float()
    if layer_number != 1:
        scores = scores * layer_number
    if bias is not None:
        scores = scores + bias
    if masked is not None:
        scores = scores.masked_fill(masked, -torch.inf)
    kept = torch.softmax(scores, dim=-1)
    if masked is not None:
        kept = kept.masked_fill(masked.all(dim=-1, keepdim=True), 0.0)
    kept = kept.to(query.dtype)
    if dropout:
        kept = torch.dropout(kept, dropout, train=True)
    out = torch.matmul(kept, v).permute(2, 0, 1, 3)
    return out.reshape(out.shape[0], out.shape[1], -1)


def _score(q: torch.Tensor, k: torch.Tensor, scale: float) -> torch.Tensor:
    """scale * q k^T, [b, n, s, t]; scaled before it is rounded to the dtype of q."""
    q_flat, k_flat = q.flatten(0, 1), k.flatten(0, 1)
    unused = q.new_empty(()).expand(q_flat.shape[0], q_flat.shape[1], k_flat.shape[1])
    scores = torch.baddbmm(unused, q_flat, k_flat.transpose(1, 2), beta=0.0, alpha=scale)
    return scores.view(*q.shape[:3], k.shape[2])


def make_masked(
    kind: Kind, mask: Mask, *, batch: int, num_queries: int, num_keys: int, device: torch.device
) -> torch.Tensor | None:
    """What a kind of mask drops.

    Args:
        kind: of the mask.
        mask: for padding [b, 1, 1, s], or two of them, of queries and keys, for cross attention;
            for arbitrary what broadcasts to [b, n, s, t]; else not looked at. True drops.
        batch: b.
        num_queries: s.
        num_keys: t.
        device: of the result.

    Returns:
        bool, broadcasts to [b, n, s, t]; None where nothing is dropped.

    Raises:
        ValueError: a mask is missing, or has another shape or dtype.
    """
    parts = []
    lengths = None
    if kind.is_padding:
        queries, keys = _read_padding(kind, mask, batch, num_queries, num_keys)
        parts.append(queries.transpose(2, 3) | keys)
        lengths = _count(queries), _count(keys)
    elif kind.name == "arbitrary":
        parts.append(_read_arbitrary(mask))
    band = _make_band(kind, lengths, num_queries, num_keys, device)
    if band is not None:
        parts.append(band)
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else parts[0] | parts[1]


def _count(dropped: torch.Tensor) -> torch.Tensor:
    """[b, 1, 1, s] to the number of real tokens, [b, 1, 1, 1]."""
    return dropped.logical_not().sum(dim=-1, keepdim=True)


def _read_padding(
    kind: Kind, mask: Mask, batch: int, num_queries: int, num_keys: int
) -> tuple[torch.Tensor, torch.Tensor]:
    both = mask if isinstance(mask, tuple) else (mask, mask)
    for found, size in zip(both, (num_queries, num_keys), strict=False):
        wanted = [batch, 1, 1, size]
        if found is None or found.dtype is not torch.bool or list(found.shape) != wanted:
            given = "none" if found is None else f"{found.dtype} {list(found.shape)}"
            raise ValueError(
                f"attn_mask_type {kind.name} needs a bool attention_mask of shape {wanted}, true "
                f"for padding (two of them, of queries and keys, for cross attention), not {given}"
            )
    queries, keys = both
    assert queries is not None
    assert keys is not None
    return queries, keys


def _read_arbitrary(mask: Mask) -> torch.Tensor:
    if not isinstance(mask, torch.Tensor) or mask.dtype is not torch.bool:
        raise ValueError(
            "attn_mask_type arbitrary needs one bool attention_mask, true where masked"
        )
    return mask


def _make_band(
    kind: Kind,
    lengths: tuple[torch.Tensor, torch.Tensor] | None,
    num_queries: int,
    num_keys: int,
    device: torch.device,
) -> torch.Tensor | None:
    """What the window and a causal mask drop, [1 or b, 1, s, t]."""
    left, right = kind.band
    if left < 0 and right < 0:
        return None
    offset: Any = 0
    if kind.is_bottom_right:
        offset = num_keys - num_queries if lengths is None else lengths[1] - lengths[0]
    rows = torch.arange(num_queries, device=device).view(1, 1, -1, 1)
    distance = torch.arange(num_keys, device=device).view(1, 1, 1, -1) - rows - offset
    dropped = torch.zeros_like(distance, dtype=torch.bool)
    if left >= 0:
        dropped = dropped | (distance < -left)
    if right >= 0:
        dropped = dropped | (distance > right)
    return dropped
