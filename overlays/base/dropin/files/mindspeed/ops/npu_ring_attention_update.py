"""Merge of two partial attentions: `torch_npu.npu_ring_attention_update`."""

import torch


def npu_ring_attention_update(
    prev_attn_out: torch.Tensor,
    prev_softmax_max: torch.Tensor,
    prev_softmax_sum: torch.Tensor,
    cur_attn_out: torch.Tensor,
    cur_softmax_max: torch.Tensor,
    cur_softmax_sum: torch.Tensor,
    actual_seq_qlen: torch.Tensor | None = None,
    layout: str = "SBH",
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The attention over the keys of both parts.

        max = max(max1, max2);  sum = sum1 e^(max1 - max) + sum2 e^(max2 - max)
        out = out1 sum1 e^(max1 - max) / sum + out2 sum2 e^(max2 - max) / sum

    Args:
        prev_attn_out: [s, b, h], or [t, n, d] with layout TND; fp16, bf16 or fp32.
        prev_softmax_max: [b, n, s, 8], fp32, the running maximum of scores.
        prev_softmax_sum: the same, of exponentials.
        cur_attn_out: as `prev_attn_out`; so are its two statistics.
        cur_softmax_max: as `prev_softmax_max`.
        cur_softmax_sum: as `prev_softmax_sum`.
        actual_seq_qlen: cumulative lengths, with layout TND.
        layout: SBH or TND.

    Returns:
        Output, maximum and sum, shaped as those of the first part.

    Raises:
        RuntimeError: this torch_npu lacks the operator; 2.9 does, 2.13 has it.
    """
    import torch_npu

    operator = getattr(torch_npu, "npu_ring_attention_update", None)
    if operator is None:
        raise RuntimeError(f"torch_npu {torch_npu.__version__} has no npu_ring_attention_update")
    merged: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = operator(
        prev_attn_out,
        prev_softmax_max,
        prev_softmax_sum,
        cur_attn_out,
        cur_softmax_max,
        cur_softmax_sum,
        actual_seq_qlen=actual_seq_qlen,
        input_layout=layout,
    )
    return merged
