"""npu_ring_attention_update: merge the attention over two sets of keys.

    m = max(m1, m2)    l1' = l1 exp(m1 - m)    l2' = l2 exp(m2 - m)    l = l1' + l2'
    out = out1 * l1' / l + out2 * l2' / l

No gradient is defined; ring attention brings its own.
"""

from itertools import pairwise

import torch
from torch import Tensor

from ascend_sim.kernels.attention_layout import STATS_WIDTH
from ascend_sim.kernels.checks import refuse, require_float, require_same_dtype, require_same_shape
from ascend_sim.kernels.rules import require
from ascend_sim.registry import kernel

_NAME = "npu_ring_attention_update"
_WIDTH_MULTIPLE, _MAX_WIDTH, _MAX_HEADS = 64, 768, 256


def _check(out: Tensor, stats: Tensor, layout: str, softmax_layout: str) -> None:
    """Layouts, and the sizes that output and statistics must share."""
    require(_NAME, layout in ("SBH", "TND"), f"input_layout must be SBH or TND, not {layout!r}")
    rule = f"input_softmax_layout must be '', 'SBH' or 'TND', not {softmax_layout!r}"
    require(_NAME, softmax_layout in ("", "SBH", "TND"), rule)
    require(_NAME, out.dim() == 3, f"the outputs must have 3 dims, not {out.dim()}")
    dims = 4 if layout == "SBH" else 3
    require(_NAME, stats.dim() == dims, f"the statistics must have {dims} dims in {layout}")
    rule = f"the last dim of the statistics must be {STATS_WIDTH}"
    require(_NAME, stats.shape[-1] == STATS_WIDTH, rule)
    if layout == "SBH":
        length, batch, width = out.shape
        fits = stats.shape[0] == batch and stats.shape[2] == length
        fits = fits and width % stats.shape[1] == 0
    else:
        fits = tuple(stats.shape[:2]) == tuple(out.shape[:2])
        heads, width = out.shape[1:]
        rule = f"TND needs D a multiple of {_WIDTH_MULTIPLE} up to {_MAX_WIDTH}, not {width}"
        require(_NAME, width % _WIDTH_MULTIPLE == 0 and 0 < width <= _MAX_WIDTH, rule)
        require(_NAME, heads <= _MAX_HEADS, f"TND takes at most {_MAX_HEADS} heads, not {heads}")
    rule = f"statistics {tuple(stats.shape)} do not belong to the output {tuple(out.shape)}"
    require(_NAME, fits, rule)


def _read_starts(actual_seq_qlen: Tensor | None, num_tokens: int) -> list[int]:
    """The cumulative lengths of TND, which here begin with 0 and end with T."""
    if actual_seq_qlen is None:
        refuse(_NAME, "TND needs actual_seq_qlen")
    rule = f"actual_seq_qlen must be int64, not {actual_seq_qlen.dtype}"
    require(_NAME, actual_seq_qlen.dtype == torch.int64 and actual_seq_qlen.dim() == 1, rule)
    starts = [int(n) for n in actual_seq_qlen.tolist()]
    ordered = len(starts) > 1 and starts[0] == 0 and starts == sorted(starts)
    rule = f"actual_seq_qlen must be cumulative from 0 to {num_tokens}, not {starts}"
    require(_NAME, ordered and starts[-1] == num_tokens, rule)
    return starts


def _weight_per_token(
    weight: Tensor, out: Tensor, layout: str, softmax_layout: str, starts: list[int]
) -> Tensor:
    """Spread [.., 8] weights (equal in the last dim) over the output's elements."""
    if layout == "SBH":
        width = out.shape[-1] // weight.shape[1]
        per_head = weight[..., 0].permute(2, 0, 1)
        return per_head.repeat_interleave(width, -1)
    if softmax_layout == "TND":
        return weight[..., :1]
    num_heads = weight.shape[1]
    flat = weight.reshape(-1, STATS_WIDTH)[:, 0]
    parts = []
    for start, stop in pairwise(starts):
        rows = flat[start * num_heads : stop * num_heads]
        parts.append(rows.view(num_heads, stop - start).t())
    return torch.cat(parts).unsqueeze(-1)


@kernel("npu_ring_attention_update", document="aclnnRingAttentionUpdateV2.md")
def npu_ring_attention_update(
    prev_attn_out: Tensor,
    prev_softmax_max: Tensor,
    prev_softmax_sum: Tensor,
    cur_attn_out: Tensor,
    cur_softmax_max: Tensor,
    cur_softmax_sum: Tensor,
    *,
    actual_seq_qlen: Tensor | None = None,
    input_layout: str = "SBH",
    input_softmax_layout: str = "",
) -> tuple[Tensor, Tensor, Tensor]:
    """(out, softmax_max, softmax_sum) of both key sets together.

    Args:
        prev_attn_out: SBH [S, B, N * D] or TND [T, N, D], there with D a multiple of 64;
            `cur_attn_out` alike.
        prev_softmax_max: float32 [B, N, S, 8], TND [T, N, 8]; the other statistics alike.
        actual_seq_qlen: TND only: int64, cumulative WITH a leading 0, which npu_fusion_attention's
            has not.
        input_layout: "SBH" or "TND".
        input_softmax_layout: TND only. "TND": the statistics lie as their shape says. Otherwise
            head by head inside each sequence, as npu_fusion_attention returns them by default.
            ("SBH" is allowed by the document, which does not say how it differs.)
    """
    outs = {"prev_attn_out": prev_attn_out, "cur_attn_out": cur_attn_out}
    stats = {
        "prev_softmax_max": prev_softmax_max,
        "prev_softmax_sum": prev_softmax_sum,
        "cur_softmax_max": cur_softmax_max,
        "cur_softmax_sum": cur_softmax_sum,
    }
    require_float(_NAME, **outs)
    require_same_dtype(_NAME, **outs)
    require_same_shape(_NAME, **outs)
    require_same_shape(_NAME, **stats)
    wide = all(tensor.dtype == torch.float32 for tensor in stats.values())
    require(_NAME, wide, "the statistics must be float32")
    _check(prev_attn_out, prev_softmax_max, input_layout, input_softmax_layout)
    varlen = input_layout == "TND"
    starts = _read_starts(actual_seq_qlen, prev_attn_out.shape[0]) if varlen else []
    top = torch.maximum(prev_softmax_max, cur_softmax_max)
    prev = prev_softmax_sum * torch.exp(prev_softmax_max - top)
    cur = cur_softmax_sum * torch.exp(cur_softmax_max - top)
    # Rows blank on both sides carry the highest float32; their sum must not become infinite.
    total = (prev + cur).clamp(max=torch.finfo(torch.float32).max)
    shares = [
        _weight_per_token(part / total, prev_attn_out, input_layout, input_softmax_layout, starts)
        for part in (prev, cur)
    ]
    out = prev_attn_out.float() * shares[0] + cur_attn_out.float() * shares[1]
    return out.to(prev_attn_out.dtype), top, total
