"""MoE gating: scores of the experts, and the k best of each token.

Operators: npu_moe_gating_top_k_softmax (and _v2), npu_moe_gating_top_k and its gradient. Scores are
float32 and are cast once; equal scores keep the order of the experts. Follows the torch_npu pages.

Dims: n tokens, e experts, k chosen, g groups of experts.
"""

import torch
from torch import Tensor

from ascend_sim.kernels.rules import FLOATS, refuse, require, require_dtype
from ascend_sim.registry import kernel

_MAX_EXPERTS = 2048
_MAX_K_SOFTMAX = 1024


def _choose(scores: Tensor, k: int) -> Tensor:
    """Numbers of the k greatest scores of each row, the first among equals."""
    return torch.argsort(scores, dim=-1, descending=True, stable=True)[..., :k]


def _check_softmax(name: str, x: Tensor, finished: Tensor | None, k: int) -> None:
    require(name, x.dim() in (2, 3), f"x must be 2-D or 3-D, not {x.dim()}-D")
    require_dtype(name, "x", x, FLOATS)
    require(name, 0 < k <= min(x.size(-1), _MAX_K_SOFTMAX), f"k {k} is not in [1, experts]")
    if finished is not None:
        require_dtype(name, "finished", finished, (torch.bool,))
        require(name, finished.shape == x.shape[:-1], "finished must have the shape x[:-1]")


def _mark_finished(experts: Tensor, finished: Tensor | None, num_experts: int) -> Tensor:
    if finished is not None:
        experts = torch.where(finished.unsqueeze(-1), num_experts, experts)
    return experts.to(torch.int32)


@kernel("npu_moe_gating_top_k_softmax", document="torch_npu-npu_moe_gating_top_k_softmax")
def gating_top_k_softmax(
    x: Tensor, finished: Tensor | None = None, k: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """Softmax over the experts, then the k best.

    Args:
        x: [n, e] or [b, s, e] logits, fp16, bf16 or fp32.
        finished: bool x[:-1]; the experts of these rows read as e, one past the last.
        k: at most e and 1024.

    Returns:
        Probabilities (dtype of x), expert numbers and row numbers (int32), all [..., k]. The row
        number of choice j of token i is j·n + i.

    Raises:
        RuntimeError: a documented rule is broken.
    """
    _check_softmax("npu_moe_gating_top_k_softmax", x, finished, k)
    scores = torch.softmax(x.float(), -1)
    experts = _choose(scores, k)
    picked = scores.gather(-1, experts).to(x.dtype)
    rows = x[..., 0].numel()
    row_numbers = torch.arange(rows * k).reshape(k, rows).T.reshape(picked.shape)
    return (
        picked,
        _mark_finished(experts, finished, x.size(-1)),
        row_numbers.to(torch.int32).contiguous(),
    )


@kernel("npu_moe_gating_top_k_softmax_v2", document="torch_npu-npu_moe_gating_top_k_softmax_v2")
def gating_top_k_softmax_v2(
    x: Tensor,
    *,
    k: int = 1,
    finished: Tensor | None = None,
    renorm: int | None = 0,
    output_softmax: bool | None = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Softmax before (renorm 0) or after (renorm 1) the choice of the k best.

    Args:
        x: [n, e] or [b, s, e] logits, fp16, bf16 or fp32.
        k: at most e and 1024.
        finished: as in `gating_top_k_softmax`.
        renorm: 0 or 1.
        output_softmax: with renorm 0, also return all probabilities in fp32.

    Returns:
        Probabilities (dtype of x) and expert numbers (int32), [..., k]; all probabilities, or
        an empty tensor.

    Raises:
        RuntimeError: a documented rule is broken.
    """
    name = "npu_moe_gating_top_k_softmax_v2"
    _check_softmax(name, x, finished, k)
    require(name, renorm in (0, 1, None), f"renorm must be 0 or 1, not {renorm}")
    scores = torch.softmax(x.float(), -1)
    experts = _choose(x if renorm else scores, k)
    if renorm:
        picked = torch.softmax(x.gather(-1, experts).float(), -1)
        scores = scores.new_empty(0)
    else:
        picked = scores.gather(-1, experts)
        scores = scores if output_softmax else scores.new_empty(0)
    return picked.to(x.dtype), _mark_finished(experts, finished, x.size(-1)), scores


def _check_groups(name: str, experts: int, k: int, k_group: int, group_count: int) -> None:
    require(name, group_count > 0 and experts % group_count == 0, "group_count must divide experts")
    size = experts // group_count
    require(name, size > 2, f"a group must hold more than 2 experts, not {size}")
    aligned = -(-size // 32) * 32 * group_count
    require(name, aligned <= _MAX_EXPERTS, f"groups padded to 32 must hold at most {_MAX_EXPERTS}")
    require(name, 1 <= k_group <= group_count, f"k_group {k_group} is not in [1, group_count]")
    require(name, 1 <= k <= k_group * size, f"k {k} is not in [1, k_group * group size]")


def _keep_best_groups(
    scores: Tensor, k_group: int, group_count: int, group_select_mode: int
) -> Tensor:
    """Scores with all but the k_group best groups at -inf."""
    grouped = scores.reshape(scores.size(0), group_count, -1)
    if group_select_mode == 0:
        group_scores = grouped.amax(-1)
    else:
        group_scores = grouped.topk(2, -1).values.sum(-1)
    kept = torch.zeros_like(group_scores, dtype=torch.bool)
    kept.scatter_(-1, _choose(group_scores, k_group), True)
    return torch.where(kept.unsqueeze(-1), grouped, -torch.inf).flatten(-2)


@kernel("npu_moe_gating_top_k", document="torch_npu-npu_moe_gating_top_k")
def gating_top_k(
    x: Tensor,
    k: int,
    *,
    bias: Tensor | None = None,
    input_ids: Tensor | None = None,
    tid2eid: Tensor | None = None,
    k_group: int = 1,
    group_count: int = 1,
    group_select_mode: int = 0,
    renorm: int = 0,
    norm_type: int = 0,
    out_flag: bool = False,
    routed_scaling_factor: float = 1.0,
    eps: float = 1e-20,
) -> tuple[Tensor, Tensor, Tensor]:
    """Choose k experts from the k_group best groups; `bias` steers the choice, not the weights.

    y = f·s with the softmax scores s (norm_type 0), and f·s / (sum of the k s + eps) with sigmoid
    scores (norm_type 1).

    Args:
        x: [n, e] logits, fp16, bf16 or fp32; e at most 2048.
        k: chosen experts.
        bias: [e], dtype of x.
        input_ids: hash mode, not simulated; so is `tid2eid`.
        k_group: groups kept.
        group_count: equal groups of more than 2 experts.
        group_select_mode: a group's score is its best (0) or the sum of its two best (1).
        renorm: only 0.
        norm_type: 0 softmax, 1 sigmoid.
        out_flag: also return s.
        routed_scaling_factor: f.
        eps: added to the sum.

    Returns:
        y [n, k] in the dtype of x, experts [n, k] int32, s [n, e] fp32. Without `out_flag` the
        device leaves s unwritten; here it is NaN, so that its use (by the gradient) shows.

    Raises:
        RuntimeError: a documented rule is broken.
        NotImplementedError: hash mode.
    """
    name = "npu_moe_gating_top_k"
    require(name, x.dim() == 2, f"x must be 2-D, not {x.dim()}-D")
    require_dtype(name, "x", x, FLOATS)
    require(name, x.size(1) <= _MAX_EXPERTS, f"at most {_MAX_EXPERTS} experts")
    _check_groups(name, x.size(1), k, k_group, group_count)
    require(name, group_select_mode in (0, 1), "group_select_mode must be 0 or 1")
    require(name, renorm == 0, "renorm must be 0")
    require(name, norm_type in (0, 1), "norm_type must be 0 or 1")
    if bias is not None:
        require(name, bias.dtype == x.dtype, "bias must have the dtype of x")
        require(name, bias.shape == x.shape[1:], "bias must have one value per expert")
    if input_ids is not None or tid2eid is not None:
        refuse(name, "the hash mode (input_ids, tid2eid)")

    scores = torch.sigmoid(x.float()) if norm_type == 1 else torch.softmax(x.float(), -1)
    ranked = scores if bias is None else scores + bias.float()
    experts = _choose(_keep_best_groups(ranked, k_group, group_count, group_select_mode), k)
    picked = scores.gather(1, experts)
    if norm_type == 1:
        picked = picked / (picked.sum(1, keepdim=True) + eps)
    saved = scores if out_flag else torch.full_like(scores, torch.nan)
    return (picked * routed_scaling_factor).to(x.dtype), experts.to(torch.int32), saved


@kernel("npu_moe_gating_top_k_backward", document="torch_npu-npu_moe_gating_top_k_backward")
def gating_top_k_backward(
    x_norm: Tensor,
    grad_y: Tensor,
    expertIdx: Tensor,
    *,
    renorm: int = 0,
    norm_type: int = 0,
    routed_scaling_factor: float = 1.0,
    eps: float = 1e-20,
) -> Tensor:
    """Gradient of the logits in sigmoid mode.

    With s the k chosen scores and t = sum(s) + eps: dL/ds = f·(g / t - sum(g·s) / t²), then
    times s·(1 - s).

    Args:
        x_norm: [n, e] fp32 scores, the third output of `gating_top_k`.
        grad_y: [n, k], fp16, bf16 or fp32.
        expertIdx: [n, k] int32.
        renorm: only 0.
        norm_type: only 1.
        routed_scaling_factor: f.
        eps: as in the forward.

    Returns:
        [n, e] in the dtype of grad_y, zero outside the chosen experts.

    Raises:
        RuntimeError: a documented rule is broken.
    """
    name = "npu_moe_gating_top_k_backward"
    require(name, norm_type == 1, f"norm_type must be 1 (sigmoid), not {norm_type}")
    require(name, renorm == 0, "renorm must be 0")
    require_dtype(name, "x_norm", x_norm, (torch.float32,))
    require_dtype(name, "grad_y", grad_y, FLOATS)
    require_dtype(name, "expertIdx", expertIdx, (torch.int32,))
    require(name, x_norm.dim() == 2, "x_norm must be 2-D")
    require(name, grad_y.shape == expertIdx.shape, "expertIdx must have the shape of grad_y")
    require(name, 2 <= x_norm.size(1) <= _MAX_EXPERTS, f"experts must be in [2, {_MAX_EXPERTS}]")

    experts, grad = expertIdx.long(), grad_y.float()
    chosen = x_norm.gather(1, experts)
    total = chosen.sum(1, keepdim=True) + eps
    inner = (grad * chosen).sum(1, keepdim=True)
    grad_chosen = routed_scaling_factor * (grad / total - inner / total**2)
    grad_x = torch.zeros_like(x_norm)
    grad_x.scatter_(1, experts, grad_chosen * chosen * (1 - chosen))
    return grad_x.to(grad_y.dtype)
