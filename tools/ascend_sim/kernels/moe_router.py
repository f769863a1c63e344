"""MoE routing around the experts: copy tokens to them, count them, add their outputs up again.

Operators: npu_moe_init_routing (and _v2), npu_moe_finalize_routing, npu_moe_compute_expert_tokens,
npu_moe_re_routing. Follows the torch_npu pages of the same names.

Dims: n tokens, k experts per token, h hidden size, e experts, r ranks.
"""

import torch
from torch import Tensor

from ascend_sim.kernels.rules import FLOATS, INDICES, refuse, require, require_dtype
from ascend_sim.registry import kernel


@kernel("npu_moe_init_routing", document="torch_npu-npu_moe_init_routing")
def init_routing(
    x: Tensor, row_idx: Tensor, expert_idx: Tensor, active_num: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Sort the tokens' copies by expert, stably, carrying the row numbers along.

    Args:
        x: [n, h], fp16, bf16 or fp32.
        row_idx: [n, k] int32, distinct, as `gating_top_k_softmax` numbers rows (j·n + i).
        expert_idx: [n, k] int32.
        active_num: tokens whose copies are kept.

    Returns:
        Copies [min(n, active_num)·k, h]; [n·k] int32, the place of each numbered row; [n·k] int32,
        the sorted experts.

    Raises:
        RuntimeError: a documented rule is broken.
    """
    name = "npu_moe_init_routing"
    require(name, x.dim() == 2 and expert_idx.dim() == 2, "x and expert_idx must be 2-D")
    require_dtype(name, "x", x, FLOATS)
    require_dtype(name, "row_idx", row_idx, (torch.int32,))
    require_dtype(name, "expert_idx", expert_idx, (torch.int32,))
    require(name, expert_idx.shape == row_idx.shape, "row_idx and expert_idx must have one shape")
    require(name, x.size(0) == expert_idx.size(0), "x and expert_idx must have the same rows")
    require(name, active_num >= 0, "active_num must not be negative")
    num_rows, topk = expert_idx.shape
    experts, order = torch.sort(expert_idx.reshape(-1), stable=True)
    sorted_rows = row_idx.reshape(-1)[order].long()
    places = torch.empty_like(experts)
    places[sorted_rows] = torch.arange(experts.numel(), dtype=torch.int32)
    kept = sorted_rows[: min(num_rows, active_num) * topk]
    return x[kept % max(num_rows, 1)], places, experts


def _check_init_v2(
    name: str, x: Tensor, expert_idx: Tensor, scale: Tensor | None, offset: Tensor | None
) -> None:
    require(name, x.dim() == 2 and expert_idx.dim() == 2, "x and expert_idx must be 2-D")
    require_dtype(name, "x", x, (*FLOATS, torch.int8))
    require_dtype(name, "expert_idx", expert_idx, (torch.int32,))
    require(name, x.size(0) == expert_idx.size(0), "x and expert_idx must have the same rows")
    require(name, offset is None, "offset must be None")
    if scale is not None:
        require_dtype(name, "scale", scale, (torch.float32,))
        require(name, scale.shape == x.shape[:1], "scale must hold one value per token")


def _count_experts(experts: Tensor, start: int, end: int, as_pairs: bool, num: int) -> Tensor:
    """Counts of [start, end), or [num, 2] pairs of used experts and their counts, then zeros."""
    counts = torch.bincount(experts - start, minlength=end - start)
    if not as_pairs:
        return counts
    pairs = torch.zeros((num, 2), dtype=torch.int64)
    used = counts.nonzero().squeeze(1)
    pairs[: used.numel()] = torch.stack([used + start, counts[used]], 1)
    return pairs


@kernel("npu_moe_init_routing_v2", document="torch_npu-npu_moe_init_routing_v2")
def init_routing_v2(
    x: Tensor,
    expert_idx: Tensor,
    *,
    scale: Tensor | None = None,
    offset: Tensor | None = None,
    active_num: int = -1,
    expert_capacity: int = -1,
    expert_num: int = -1,
    drop_pad_mode: int = 0,
    expert_tokens_num_type: int = 0,
    expert_tokens_num_flag: bool = False,
    quant_mode: int = -1,
    active_expert_range: list[int] = [],  # noqa: B006 (the schema's default; never changed)
    row_idx_type: int = 0,
    x_dtype: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Copy tokens to the experts of a range, in expert order, and count them.

    Args:
        x: [n, h], fp16, bf16, fp32 or int8.
        expert_idx: [n, k] int32.
        scale: [n] fp32, carried along with the tokens.
        offset: only None.
        active_num: copies kept in all; 0 and -1 keep all of them.
        expert_capacity: not read (drop_pad_mode 0).
        expert_num: number of experts, positive.
        drop_pad_mode: only 0.
        expert_tokens_num_type: 1 counts of the range, 2 pairs of expert and count.
        expert_tokens_num_flag: only True.
        quant_mode: -1; the quantising modes are not simulated.
        active_expert_range: [start, end); all experts when empty.
        row_idx_type: 0 where the copies went (-1 for none), 1 where they came from.
        x_dtype: not simulated.

    Returns:
        Copies [n·k, h] ([active_num, h] if fewer), row numbers [n·k] int32, counts int64,
        scales fp32. What the device leaves undefined is zero here.

    Raises:
        RuntimeError: a documented rule is broken.
        NotImplementedError: a quantising mode.
    """
    name = "npu_moe_init_routing_v2"
    if quant_mode in (0, 1) or quant_mode > 1 or x_dtype is not None:
        refuse(name, f"quant_mode {quant_mode} with x_dtype {x_dtype}")
    _check_init_v2(name, x, expert_idx, scale, offset)
    require(name, drop_pad_mode == 0, "drop_pad_mode must be 0")
    require(name, expert_tokens_num_type in (1, 2), "expert_tokens_num_type must be 1 or 2")
    require(name, expert_tokens_num_flag, "expert_tokens_num_flag must be True")
    require(name, row_idx_type in (0, 1), "row_idx_type must be 0 or 1")
    require(name, active_num >= -1, "active_num must be at least -1")
    most = 5120 if expert_tokens_num_type == 2 else 10240
    require(name, 0 < expert_num <= most, f"expert_num must be in [1, {most}]")
    start, end = active_expert_range or (0, expert_num)
    require(name, 0 <= start < end <= expert_num, "active_expert_range must lie in [0, expert_num]")

    topk, total = max(expert_idx.size(1), 1), expert_idx.numel()
    flat = expert_idx.reshape(-1).long()
    inside = (flat >= start) & (flat < end)
    available = int(inside.sum())
    order = torch.argsort(torch.where(inside, flat, expert_num), stable=True)[:available]
    kept = order[:active_num] if active_num > 0 else order
    length = total if active_num <= 0 else min(active_num, total)

    copies = x.new_zeros((length, x.size(1)))
    copies[: kept.numel()] = x[kept // topk]
    scales = x.new_zeros(length, dtype=torch.float32)
    if scale is not None:
        scales[: kept.numel()] = scale[kept // topk]
    if row_idx_type == 0:
        rows = torch.full((total,), -1, dtype=torch.int32)
        rows[order] = torch.arange(available, dtype=torch.int32)
    else:
        rows = torch.zeros(total, dtype=torch.int32)
        rows[:available] = order.to(torch.int32)
    as_pairs = expert_tokens_num_type == 2
    counts = _count_experts(flat[inside], start, end, as_pairs, expert_num)
    return copies, rows, counts, scales


@kernel("npu_moe_finalize_routing", document="torch_npu-npu_moe_finalize_routing")
def finalize_routing(
    expanded_permuted_rows: Tensor,
    skip1: Tensor | None,
    skip2: Tensor | None,
    bias: Tensor | None,
    scales: Tensor | None,
    expanded_src_to_dst_row: Tensor,
    export_for_source_row: Tensor | None,
    drop_pad_mode: int | None = 0,
    k: int | None = 1,
) -> Tensor:
    """Weighted sum of the expert outputs of each token, with their biases and two residuals.

    out[i] = skip1[i] + skip2[i] + sum over j of scales[i, j] · (rows[dst[j·n + i]] + bias[expert]).

    Args:
        expanded_permuted_rows: [n·k, h], fp16, bf16 or fp32.
        skip1: [n, h].
        skip2: [n, h]; needs skip1 to be None when it is.
        bias: [e, h], needs `export_for_source_row`.
        scales: [n, k]; 1 without it.
        expanded_src_to_dst_row: [n·k] int32, choice-major (j·n + i).
        export_for_source_row: [n, k] int32, the expert of each choice.
        drop_pad_mode: only 0.
        k: read when `scales` is None.

    Returns:
        [n, h] in the dtype of the rows.

    Raises:
        RuntimeError: a documented rule is broken.
    """
    name = "npu_moe_finalize_routing"
    rows, dst = expanded_permuted_rows, expanded_src_to_dst_row
    require(name, not drop_pad_mode, "drop_pad_mode must be 0")
    require(name, rows.dim() == 2, "expanded_permuted_rows must be 2-D")
    require_dtype(name, "expanded_permuted_rows", rows, FLOATS)
    require_dtype(name, "expanded_src_to_dst_row", dst, (torch.int32,))
    require(name, skip2 is not None or skip1 is None, "skip1 must be None when skip2 is")
    topk = (k or 1) if scales is None else scales.size(1)
    num_rows = dst.numel() // topk
    require(name, dst.numel() == num_rows * topk == rows.size(0), "there must be n * k rows")
    for label, tensor in (("skip1", skip1), ("skip2", skip2), ("bias", bias), ("scales", scales)):
        if tensor is not None:
            require(name, tensor.dtype == rows.dtype, f"{label} must have the dtype of the rows")

    picked = rows.float()[dst.long()].reshape(topk, num_rows, -1).transpose(0, 1)
    if bias is not None:
        require(name, export_for_source_row is not None, "bias needs export_for_source_row")
        assert export_for_source_row is not None
        require_dtype(name, "export_for_source_row", export_for_source_row, (torch.int32,))
        picked = picked + bias.float()[export_for_source_row.long()]
    if scales is not None:
        picked = picked * scales.float().unsqueeze(2)
    out = picked.sum(1)
    for skip in (skip1, skip2):
        if skip is not None:
            require(name, skip.shape == out.shape, "skip1 and skip2 must have the output's shape")
            out = out + skip.float()
    return out.to(rows.dtype)


@kernel("npu_moe_compute_expert_tokens", document="torch_npu-npu_moe_compute_expert_tokens")
def compute_expert_tokens(sorted_expert_for_source_row: Tensor, num_expert: int) -> Tensor:
    """Cumulative number of rows up to and including each expert.

    Args:
        sorted_expert_for_source_row: [m] int32, non-decreasing, below 2^24 elements.
        num_expert: in [1, 2048].

    Returns:
        [num_expert] int32.

    Raises:
        RuntimeError: a documented rule is broken.
    """
    name = "npu_moe_compute_expert_tokens"
    experts = sorted_expert_for_source_row
    require(name, experts.dim() == 1, "sorted_expert_for_source_row must be 1-D")
    require_dtype(name, "sorted_expert_for_source_row", experts, (torch.int32,))
    require(name, 0 < num_expert <= 2048, "num_expert must be in [1, 2048]")
    require(name, bool((experts.diff() >= 0).all()), "the experts must not decrease")
    return torch.searchsorted(
        experts, torch.arange(num_expert, dtype=torch.int32), right=True, out_int32=True
    )


@kernel("npu_moe_re_routing", document="torch_npu-npu_moe_re_routing")
def re_routing(
    tokens: Tensor,
    expert_token_num_per_rank: Tensor,
    *,
    per_token_scales: Tensor | None = None,
    expert_token_num_type: int = 1,
    idx_type: int = 0,
    tokens_dtype: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Reorder received tokens from (rank, expert) order to (expert, rank) order.

    Args:
        tokens: [a, h], fp16, bf16 or int8.
        expert_token_num_per_rank: [r, e], int32 or int64, adding up to a.
        per_token_scales: [a] fp32, reordered too.
        expert_token_num_type: only 1 (counts).
        idx_type: only 0 (where each row came from).
        tokens_dtype: not simulated.

    Returns:
        Tokens, scales (zeros without input scales), int32 [a] rows of origin, [e] counts.

    Raises:
        RuntimeError: a documented rule is broken.
        NotImplementedError: `tokens_dtype` is given.
    """
    name = "npu_moe_re_routing"
    counts = expert_token_num_per_rank
    if tokens_dtype is not None:
        refuse(name, f"tokens_dtype {tokens_dtype}")
    require(name, tokens.dim() == 2 and counts.dim() == 2, "tokens and counts must be 2-D")
    require_dtype(name, "tokens", tokens, (torch.float16, torch.bfloat16, torch.int8))
    require_dtype(name, "expert_token_num_per_rank", counts, INDICES)
    require(name, expert_token_num_type == 1, "expert_token_num_type must be 1")
    require(name, idx_type == 0, "idx_type must be 0")
    require(name, int(counts.sum()) == tokens.size(0), "the counts must add up to the tokens")
    sizes = [int(size) for size in counts.reshape(-1)]
    blocks = torch.split(torch.arange(tokens.size(0)), sizes)
    num_ranks, num_experts = counts.shape
    order = torch.cat(
        [
            blocks[rank * num_experts + expert]
            for expert in range(num_experts)
            for rank in range(num_ranks)
        ]
    )
    scales = torch.zeros(tokens.size(0))
    if per_token_scales is not None:
        require_dtype(name, "per_token_scales", per_token_scales, (torch.float32,))
        require(name, per_token_scales.shape == tokens.shape[:1], "one scale per token")
        scales = per_token_scales[order]
    return tokens[order], scales, order.to(torch.int32), counts.sum(0, dtype=counts.dtype)
