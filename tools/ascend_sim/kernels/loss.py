"""npu_cross_entropy_loss and its gradient: log_softmax and nll_loss in one.

    loss_n = (1 - ls) * w_t * -log p_t  +  ls / C * sum_c w_c * -log p_c

with t the target of row n, w the class weights, ls the label smoothing. "mean" divides the sum by
the sum of w_t over the rows that count. The z-loss is declared but not enabled on the device.
"""

import torch
from torch import Tensor

from ascend_sim.kernels.checks import require_float
from ascend_sim.kernels.rules import require
from ascend_sim.registry import kernel

_MAX_ROWS = 200000


def _check(
    operator: str,
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: str,
    ignore_index: int,
    label_smoothing: float,
) -> None:
    require_float(operator, input=logits)
    require(operator, logits.dim() == 2 and logits.shape[1] > 0, "input must be [N, C] with C > 0")
    rows, classes = logits.shape
    require(operator, 0 < rows <= _MAX_ROWS, f"N = {rows} must be in (0, {_MAX_ROWS}]")
    fits = target.dtype == torch.int64 and tuple(target.shape) == (rows,)
    require(operator, fits, f"target must be int64 of shape [{rows}]")
    inside = bool(((target >= 0) & (target < classes)).all())
    rule = f"every target must be in [0, {classes}); a negative ignore_index ignores nothing"
    require(operator, inside, rule)
    require(operator, ignore_index < classes, f"ignore_index must be below C = {classes}")
    if weight is not None:
        fits = weight.dtype == torch.float32 and tuple(weight.shape) == (classes,)
        require(operator, fits, f"weight must be float32 of shape [{classes}]")
        inside = bool(((weight > 0) & (weight <= 1)).all())
        require(operator, inside, "weight must lie in (0, 1]")
    known = reduction in ("mean", "sum", "none")
    require(operator, known, f"reduction must be mean, sum or none, not {reduction!r}")
    rule = f"label_smoothing must be in [0, 1), not {label_smoothing}"
    require(operator, 0.0 <= label_smoothing < 1.0, rule)


def _row_weights(target: Tensor, weight: Tensor | None, ignore_index: int) -> tuple[Tensor, Tensor]:
    """(w_t, 1 or 0 for rows that count), both float32 [N]."""
    counts = (target != ignore_index) if ignore_index >= 0 else torch.ones_like(target)
    counts = counts.float()
    return (counts if weight is None else weight[target] * counts), counts


@kernel("npu_cross_entropy_loss", document="torch_npu-npu_cross_entropy_loss.md")
def npu_cross_entropy_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    lse_square_scale_for_zloss: float = 0.0,
    return_zloss: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return (loss, log_prob [N, C], z-loss, lse), the last two empty; all in the input dtype.

    Args:
        input: logits [N, C].
        target: int64 [N], each in [0, C).
        weight: float32 [C] in (0, 1].
        reduction: "mean" and "sum" give loss [1], "none" [N].
        ignore_index: rows of this target do not count; negative: all count.
        label_smoothing: in [0, 1).
        lse_square_scale_for_zloss: not enabled, must be 0.
        return_zloss: not enabled, must be False.
    """
    operator = "npu_cross_entropy_loss"
    _check(operator, input, target, weight, reduction, ignore_index, label_smoothing)
    disabled = lse_square_scale_for_zloss == 0.0 and not return_zloss
    require(operator, disabled, "the z-loss is not enabled on the device")
    log_prob = torch.log_softmax(input.float(), -1)
    row_weight, counts = _row_weights(target, weight, ignore_index)
    picked = -log_prob.gather(1, target.unsqueeze(1)).squeeze(1)
    rows = (1.0 - label_smoothing) * row_weight * picked
    if label_smoothing > 0.0:
        classes = -log_prob if weight is None else -log_prob * weight
        rows = rows + label_smoothing / input.shape[1] * classes.sum(-1) * counts
    if reduction == "none":
        loss = rows
    else:
        total = rows.sum().reshape(1)
        loss = total / row_weight.sum() if reduction == "mean" else total
    empty = input.new_empty(0)
    return loss.to(input.dtype), log_prob.to(input.dtype), empty, input.new_empty(0)


@kernel("npu_cross_entropy_loss_backward", document="torch_npu-npu_cross_entropy_loss.md")
def npu_cross_entropy_loss_backward(
    grad_loss: Tensor,
    log_prob: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    grad_zloss: Tensor | None = None,
    lse_for_zloss: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    lse_square_scale_for_zloss: float = 0.0,
) -> Tensor:
    """grad * w_t * (p - onehot), for "mean" over sum(w_t), in the dtype of `log_prob`.

    Raises:
        RuntimeError: label smoothing, or with "mean" a weight or an ignore_index: the document
            excludes them for inputs that need a gradient.
    """
    operator = "npu_cross_entropy_loss_backward"
    _check(operator, log_prob, target, weight, reduction, ignore_index, label_smoothing)
    require(operator, label_smoothing == 0.0, "label_smoothing has no gradient on the device")
    plain = weight is None and ignore_index == -100
    rule = "with reduction mean, only the defaults of weight and ignore_index have a gradient"
    require(operator, reduction != "mean" or plain, rule)
    row_weight, _ = _row_weights(target, weight, ignore_index)
    scale = row_weight * grad_loss.float().reshape(-1)
    if reduction == "mean":
        scale = scale / row_weight.sum()
    probability = log_prob.float().exp()
    probability.scatter_add_(1, target.unsqueeze(1), torch.full_like(probability[:, :1], -1.0))
    return (probability * scale.unsqueeze(1)).to(log_prob.dtype)
