"""Merge the attention over two sets of keys by one Ascend operator.

`npu_ring_attention_update` (operator page: CANN, aclnnRingAttentionUpdateV2) computes what
`online_softmax.merge_` computes by ten launches. It has no gradient and needs none.

Dims: s rows, b batch, n heads, d value width, t packed rows.
"""

import torch
from mindspeed.core.context_parallel.online_softmax import TND, Attended, Layout


def merge_fused_(into: Attended, new: Attended, layout: Layout) -> None:
    """`merge_` by one operator, `torch_npu.npu_ring_attention_update`.

    Args:
        into: the attention so far; float32 output, statistics of STATS_WIDTH columns. It gets
            new tensors.
        new: of the same rows over other keys.
        layout: SBND or TND; TND needs a width that is a multiple of 64.
    """
    import torch_npu

    out = new.out.float()
    options: dict[str, object] = {"input_layout": "SBH"}
    shape = into.out.shape
    if layout is TND:
        # The statistics lie as their shape says, so one sequence of all rows is enough.
        ends = torch.tensor([0, shape[0]], dtype=torch.int64, device=out.device)
        options = {"input_layout": "TND", "input_softmax_layout": "TND", "actual_seq_qlen": ends}
        old = into.out
    else:
        old, out = (x.reshape(shape[0], shape[1], -1) for x in (into.out, out))
    # A part of the rows is no contiguous view of the statistics, which have heads before rows.
    merged, top, total = torch_npu.npu_ring_attention_update(
        old.contiguous(),
        into.top.contiguous(),
        into.total.contiguous(),
        out.contiguous(),
        new.top,
        new.total,
        **options,
    )
    into.out, into.top, into.total = merged.view(shape), top, total
