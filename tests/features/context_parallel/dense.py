"""What context-parallel attention is compared with: all rows on one rank, in plain torch.

Also the same arithmetic as a kernel, for ranks without a device. Written apart from the overlays.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


def attend(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, hidden: Tensor, dropped: Tensor | None = None
) -> Tensor:
    """Softmax attention.

    Args:
        q: [s, b, n, d].
        k: [t, b, g, d].
        v: [t, b, g, w].
        scale: of the scores.
        hidden: bool, True where a key may not be seen; broadcasts to [b, n, s, t].
        dropped: factors of dropout, 0 or 1 / keep_prob; broadcasts to [b, n, s, t].

    Returns:
        [s, b, n, w].
    """
    repeats = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(repeats, 2), v.repeat_interleave(repeats, 2)
    scores = torch.einsum("sbnd,tbnd->bnst", q, k) * scale
    probabilities = torch.nan_to_num(scores.masked_fill(hidden, -torch.inf).softmax(-1))
    if dropped is not None:
        probabilities = probabilities * dropped
    return torch.einsum("bnst,tbnw->sbnw", probabilities, v)


def hide(kind: str, length: int, starts: list[int]) -> Tensor:
    """[s, s], True where hidden: "causal" or "full", within each of the packed sequences.

    Or "band": causal, and nothing further back than an eighth; "scattered": four documents whose
    rows take turns; "late": causal, but that the last row does not see the first.
    """
    row = torch.arange(length)
    later = row[None, :] > row[:, None]
    if kind == "band":
        return later | (row[None, :] < row[:, None] - length // 8)
    if kind == "scattered":
        return row[:, None] % 4 != row[None, :] % 4
    if kind == "late":
        later[-1, 0] = True
        return later
    sequence = torch.bucketize(row, torch.tensor(starts[1:]), right=True)
    hidden = sequence[:, None] != sequence[None, :]
    return hidden | later if kind == "causal" else hidden


@dataclass(frozen=True)
class TorchKernel:
    """`BlockKernel` in float32 on any device, without dropout."""

    layout: Any
    scale: float

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Any) -> tuple[Any, Any]:
        """See `BlockKernel`."""
        from mindspeed.core.context_parallel.online_softmax import Attended

        q4, k4, v4 = (self._heads_first(x) for x in (q, k, v))
        scores = self._scores(q4, k4, mask)
        top = scores.amax(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).min)
        weights = torch.exp(scores - top)
        total = weights.sum(-1, keepdim=True)
        blank = total == 0
        v4 = v4.repeat_interleave(q4.shape[1] // v4.shape[1], 1)
        out = weights @ v4 / total.masked_fill(blank, 1.0)
        total = total.masked_fill(blank, torch.finfo(torch.float32).max)
        stats = [x.squeeze(0).transpose(0, 1) if q.dim() == 3 else x for x in (top, total)]
        wide = [x.expand(*x.shape[:-1], 8).contiguous() for x in stats]
        return Attended(self._back(out, q), *wide), (0, 0, 0)

    def backward(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, attended: Any, mask: Any, draw: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `BlockKernel`."""
        q4, k4, v4 = (self._heads_first(x) for x in (q, k, v))
        g4, out = self._heads_first(grad), self._heads_first(attended.out)
        repeats = q4.shape[1] // k4.shape[1]
        stats = [x[..., :1] for x in (attended.top, attended.total)]
        top, total = (x.transpose(0, 1).unsqueeze(0) if q.dim() == 3 else x for x in stats)
        p = torch.exp(self._scores(q4, k4, mask) - top) / total
        dp = g4 @ v4.repeat_interleave(repeats, 1).transpose(-1, -2)
        ds = p * (dp - (g4 * out).sum(-1, keepdim=True)) * self.scale
        dq = ds @ k4.repeat_interleave(repeats, 1)
        dk = (ds.transpose(-1, -2) @ q4).unflatten(1, (-1, repeats)).sum(2)
        dv = (p.transpose(-1, -2) @ g4).unflatten(1, (-1, repeats)).sum(2)
        return self._back(dq, q), self._back(dk, k), self._back(dv, v)

    def _scores(self, q4: Tensor, k4: Tensor, mask: Any) -> Tensor:
        k4 = k4.repeat_interleave(q4.shape[1] // k4.shape[1], 1)
        scores = q4 @ k4.transpose(-1, -2) * self.scale
        s, t = scores.shape[-2:]
        query_ends, key_ends = list(mask.query_ends or [s]), list(mask.key_ends or [t])
        hidden = torch.ones(s, t, dtype=torch.bool)
        for q0, q1, k0, k1 in zip(
            [0, *query_ends], query_ends, [0, *key_ends], key_ends, strict=False
        ):
            i = torch.arange(q1 - q0)[:, None] + (k1 - k0) - (q1 - q0)
            later = torch.arange(k1 - k0)[None, :] > i
            hidden[q0:q1, k0:k1] = later if mask.causal else torch.zeros_like(later)
        if mask.given is not None:
            hidden = mask.given
        return scores.masked_fill(hidden.to(scores.device), -torch.inf)

    def _heads_first(self, x: Tensor) -> Tensor:
        """[b, n, s, d], float32."""
        if x.dim() == 3:
            return x.float().transpose(0, 1).unsqueeze(0)
        return x.float() if self.layout.heads == 1 else x.float().permute(1, 2, 0, 3)

    def _back(self, x: Tensor, like: Tensor) -> Tensor:
        if like.dim() == 3:
            x = x.squeeze(0).transpose(0, 1)
        elif self.layout.heads == 2:
            x = x.permute(2, 0, 1, 3)
        return x.contiguous().to(like.dtype)
