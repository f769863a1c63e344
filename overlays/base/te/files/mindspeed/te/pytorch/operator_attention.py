"""TransformerEngine's attention by Ascend's operator: translate masks for
`mindspeed.core.attention`.

Called only where the overlay attention/flash-attention is in the build, which base/te does not
require.

Dims: s queries, t keys, b batch, n query heads, g key heads, d key width, v value width, T tokens.
"""

import importlib
from typing import Any

import torch
from mindspeed.te.pytorch.dense_attention import Kind, Mask, make_masked
from mindspeed.te.pytorch.packed import Packed

FLASH = "mindspeed.core.attention.flash"
_PACKING = "mindspeed.core.attention.packing"


def attend_operator(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    kind: Kind,
    mask: Mask,
    **settings: Any,
) -> torch.Tensor:
    """Attention of a batch of equally long sequences.

    Args:
        query: [s, b, n, d].
        key: [t, b, g, d].
        value: [t, b, g, v].
        kind: of the mask.
        mask: see `make_masked`.
        settings: `scale` and `dropout`.

    Returns:
        [s, b, n * v].
    """
    sizes = {"batch": query.shape[1], "num_queries": len(query), "num_keys": len(key)}
    masking = _choose_compressed(kind, square=len(query) == len(key))
    if masking is None:
        masked = make_masked(kind, mask, device=query.device, **sizes)
        masking = _flash().keep_unmasked(masked, **sizes)
    out: torch.Tensor = _flash().flash_attention(query, key, value, masking=masking, **settings)
    return out


def attend_packed_by_operator(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    packed: Packed,
    kind: Kind,
    **settings: Any,
) -> torch.Tensor:
    """Attention inside each packed sequence; arguments as for `attend_packed`.

    Raises:
        ValueError: a mask that packed sequences cannot have.
    """
    inside = Kind(kind.name.replace("padding_", "").replace("padding", "no_mask"), kind.window)
    masking = _choose_compressed(inside, square=packed.queries == packed.keys)
    if masking is None:
        raise ValueError(f"packed sequences of queries and keys cannot have the mask {kind}")
    tables = [table.tolist() if table is not None else None for table in packed.tables]
    packing = importlib.import_module(_PACKING).make_packing(
        tables[0], tables[1], tables[2] or tables[0], tables[3] or tables[1],
        num_queries=len(query), num_keys=len(key), device=query.device,
    )  # fmt: skip
    out: torch.Tensor = _flash().flash_attention_packed(
        query, key, value, packing=packing, masking=masking, **settings
    )
    return out


def _flash() -> Any:
    return importlib.import_module(FLASH)


def _choose_compressed(kind: Kind, *, square: bool) -> Any:
    """The operator's own form of a mask, None where it takes a mask tensor.

    Its bands end at the bottom right corner; those that end at the top left are the same where
    there are as many queries as keys.
    """
    if kind.is_padding or kind.name == "arbitrary":
        return None
    left, right = kind.band
    if left < 0 and right < 0:
        return _flash().keep_all()
    if left < 0 and right == 0:
        return _flash().keep_causal(bottom_right=kind.is_bottom_right)
    return _flash().keep_band(left, right) if square or kind.is_bottom_right else None
