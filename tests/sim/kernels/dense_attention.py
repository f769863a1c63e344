"""Attention in float64, score by score: what the attention kernels are tested against."""

from collections.abc import Sequence

import torch
from torch import Tensor

LAYOUTS = ["BSH", "SBH", "BSND", "BNSD"]


def keeps(
    mode: int,
    i: int,
    j: int,
    *,
    queries: int,
    keys: int,
    pre: int = 10**9,
    next: int = 10**9,
    prefix: int = 0,
    first: bool = False,
    last: bool = False,
) -> bool:
    """Whether query i may see key j in a sparse mode (0: the band from the top left corner)."""
    if mode == 0:
        return -pre <= j - i <= next
    if mode in (2, 8) and not (mode == 8 and first):
        return j <= i
    from_corner = j - i - (keys - queries)
    if mode == 4 or (mode == 7 and last) or (mode == 8 and first):
        return -pre <= from_corner <= next
    return from_corner <= 0 or (mode in (5, 6) and j < prefix)


def kept_matrix(
    mode: int,
    queries: int,
    keys: int,
    *,
    pre: int = 10**9,
    next: int = 10**9,
    prefix: int = 0,
    first: bool = False,
    last: bool = False,
) -> Tensor:
    """`keeps` for all scores, bool [queries, keys]."""
    kept = torch.zeros(queries, keys, dtype=torch.bool)
    for i in range(queries):
        for j in range(keys):
            kept[i, j] = keeps(
                mode,
                i,
                j,
                queries=queries,
                keys=keys,
                pre=pre,
                next=next,
                prefix=prefix,
                first=first,
                last=last,
            )
    return kept


def compressed_mask(mode: int) -> Tensor:
    """The mask the device wants for a compressed mode."""
    triangle = torch.triu(torch.ones(2048, 2048, dtype=torch.bool), 1)
    if mode != 6:
        return triangle
    rectangle = torch.cat([torch.zeros(1024, 1024), torch.ones(1024, 1024)], 1).bool()
    return torch.cat([triangle, rectangle])


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float = 1.0,
    kept: Tensor | None = None,
    bias: Tensor | None = None,
    bias_before_scale: bool = True,
    sink: Tensor | None = None,
    dropout: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """(out, max, sum) of [N, Sq, D], [Nkv, Skv, D], [Nkv, Skv, Dv]; `dropout` scales weights."""
    group = query.shape[0] // key.shape[0]
    keys = torch.stack([key[n // group] for n in range(query.shape[0])])
    values = torch.stack([value[n // group] for n in range(query.shape[0])])
    scores = torch.einsum("nqd,nkd->nqk", query, keys)
    if bias is not None and bias_before_scale:
        scores = scores + bias
    scores = scores * scale
    if bias is not None and not bias_before_scale:
        scores = scores + bias
    if kept is not None:
        scores = torch.where(kept, scores, torch.full_like(scores, -torch.inf))
    if sink is not None:
        column = sink.view(-1, 1, 1).expand(-1, scores.shape[1], 1)
        scores = torch.cat([scores, column], -1)
    blank = torch.isinf(scores).all(-1, keepdim=True)
    weights = torch.softmax(torch.where(blank, torch.zeros_like(scores), scores), -1)
    weights = torch.where(blank, torch.zeros_like(weights), weights)
    if not scores.shape[-1]:
        nothing = scores.new_full(scores.shape[:2], -torch.inf)
        return torch.einsum("nqk,nkd->nqd", weights, values), nothing, nothing
    top = scores.detach().amax(-1)
    total = torch.exp(scores.detach() - top.unsqueeze(-1)).sum(-1)
    if sink is not None:
        weights = weights[..., :-1]
    if dropout is not None:
        weights = weights * dropout
    return torch.einsum("nqk,nkd->nqd", weights, values), top, total


def pack(parts: Sequence[Tensor], layout: str) -> Tensor:
    """Put per-sequence [N, S, D] tensors into one of the layouts."""
    if layout == "TND":
        return torch.cat([part.transpose(0, 1) for part in parts])
    bnsd = torch.stack(list(parts))
    batch, heads, length, width = bnsd.shape
    if layout == "BNSD":
        return bnsd
    bsnd = bnsd.permute(0, 2, 1, 3)
    if layout == "BSND":
        return bsnd.contiguous()
    bsh = bsnd.reshape(batch, length, heads * width)
    return bsh if layout == "BSH" else bsh.transpose(0, 1).contiguous()


def pack_stats(parts: Sequence[Tensor], layout: str, softmax_layout: str = "") -> Tensor:
    """Put per-sequence [N, S] statistics where the operator leaves them, eight times each."""
    if layout != "TND":
        return torch.stack(list(parts)).unsqueeze(-1).repeat(1, 1, 1, 8)
    if softmax_layout == "TND":
        return torch.cat([part.t() for part in parts]).unsqueeze(-1).repeat(1, 1, 8)
    heads = parts[0].shape[0]
    flat = torch.cat([part.flatten() for part in parts])
    return flat.view(-1, heads).unsqueeze(-1).repeat(1, 1, 8)
