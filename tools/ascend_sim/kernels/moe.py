"""MoE token permutation: gather the tokens of each expert together, and add them back.

Operators: npu_moe_token_permute, npu_moe_token_unpermute, their `_with_routing_map` forms, and the
gradients that torch_npu's autograd formulas call. Sums run in float32 and are cast once.
Follows the torch_npu operator pages and the aclnnMoeToken* pages of CANN.

Dims: n tokens, k experts per token, e experts, c capacity of an expert, h hidden size,
m permuted rows (n·k, fewer after a cut, e·c when dropping and padding).
"""

import torch
from torch import Tensor

from ascend_sim.kernels.rules import FLOATS, INDICES, require, require_dtype
from ascend_sim.registry import kernel

_MAX_TOPK = 512


def _invert(order: Tensor) -> Tensor:
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(order.numel())
    return inverse


def _gather_rows(rows: Tensor, positions: Tensor) -> Tensor:
    """Rows of `rows` at `positions` in float32; a position that was cut off reads as zero."""
    kept = positions < rows.size(0)
    gathered = rows.new_zeros((positions.numel(), rows.size(1)), dtype=torch.float32)
    gathered[kept] = rows[positions[kept]].float()
    return gathered


def _scatter_rows(values: Tensor, positions: Tensor, num_rows: int) -> Tensor:
    """The transpose of `_gather_rows`; `positions` are distinct."""
    kept = positions < num_rows
    rows = values.new_zeros((num_rows, values.size(1)), dtype=torch.float32)
    rows[positions[kept]] = values[kept].float()
    return rows


def _check_restore_shape(name: str, restore_shape: list[int] | None, shape: list[int]) -> None:
    # It acts in padded mode only, which is not available; the output shape itself loses nothing.
    given = None if restore_shape is None else list(restore_shape)
    require(name, given is None or given == shape, f"restore_shape must be None, not {given}")


@kernel("npu_moe_token_permute", document="torch_npu-npu_moe_token_permute")
def permute(
    tokens: Tensor, indices: Tensor, num_out_tokens: int | None = None, padded_mode: bool = False
) -> tuple[Tensor, Tensor]:
    """Sort copies of the tokens by expert, stably.

    Args:
        tokens: [n, h], fp16, bf16 or fp32.
        indices: [n, k] or [n] (k is 1), int32 or int64, the experts of each token.
        num_out_tokens: rows kept; None and 0 keep all, negative counts from the end.
        padded_mode: only False.

    Returns:
        Permuted tokens [m, h], and int32 [n·k]: where copy i of token i // k went. That is the
        inverse of the sorting order and is never cut.

    Raises:
        RuntimeError: a documented rule is broken.
    """
    name = "npu_moe_token_permute"
    require(name, not padded_mode, "padded_mode must be False")
    require(name, tokens.dim() == 2, f"tokens must be 2-D, not {tokens.dim()}-D")
    require(name, indices.dim() in (1, 2), f"indices must be 1-D or 2-D, not {indices.dim()}-D")
    require(name, indices.size(0) == tokens.size(0), "indices and tokens must have the same rows")
    require_dtype(name, "tokens", tokens, FLOATS)
    require_dtype(name, "indices", indices, INDICES)
    topk = 1 if indices.dim() == 1 else indices.size(1)
    require(name, topk <= _MAX_TOPK, f"topK must be at most {_MAX_TOPK}, not {topk}")

    order = torch.argsort(indices.reshape(-1), stable=True)
    kept = order[: num_out_tokens or None]
    sorted_indices = _invert(order).to(torch.int32)
    return tokens[kept // max(topk, 1)], sorted_indices


@kernel("npu_moe_token_permute_grad_v2", document="aclnnMoeTokenPermuteGrad")
def permute_grad_v2(
    grad_permuted_tokens: Tensor,
    sorted_indices: Tensor,
    tokens_size_0: int,
    tokens_dtype: torch.dtype,
    num_topK: int,
    padded_mode: bool = False,
) -> Tensor:
    """Sum the gradients of the copies of each token: [m, h] to [n, h] in `tokens_dtype`."""
    require("npu_moe_token_permute_grad_v2", not padded_mode, "padded_mode must be False")
    copies = _gather_rows(grad_permuted_tokens, sorted_indices.long())
    shape = (tokens_size_0, num_topK, grad_permuted_tokens.size(1))
    return copies.reshape(shape).sum(1).to(tokens_dtype)


@kernel("npu_moe_token_permute_grad", document="aclnnMoeTokenPermuteGrad")
def permute_grad(
    tokens: Tensor,
    grad_permuted_tokens: Tensor,
    indices: Tensor,
    sorted_indices: Tensor,
    padded_mode: bool = False,
) -> Tensor:
    """The older form of `permute_grad_v2`, which reads the sizes off the forward inputs."""
    topk = 1 if indices.dim() == 1 else indices.size(1)
    return permute_grad_v2(
        grad_permuted_tokens, sorted_indices, tokens.size(0), tokens.dtype, topk, padded_mode
    )


@kernel("_npu_moe_token_unpermute", document="torch_npu-npu_moe_token_unpermute")
def unpermute_and_save(
    permuted_tokens: Tensor,
    sorted_indices: Tensor,
    probs: Tensor | None = None,
    padded_mode: bool = False,
    restore_shape: list[int] | None = None,
) -> tuple[Tensor, Tensor]:
    """Add the expert outputs back to their tokens, weighted by `probs`.

    Args:
        permuted_tokens: [m, h], fp16, bf16 or fp32.
        sorted_indices: [n·k] int32, the second output of `permute`.
        probs: [n, k]; without it k counts as 1, whatever it was when permuting.
        padded_mode: only False.
        restore_shape: only None (or the shape that results anyway).

    Returns:
        [n, h] in the dtype of the tokens, and the tokens as the backward formula wants them.

    Raises:
        RuntimeError: a documented rule is broken.
    """
    name = "npu_moe_token_unpermute"
    require(name, not padded_mode, "padded_mode must be False")
    require(name, permuted_tokens.dim() == 2, "permuted_tokens must be 2-D")
    require(name, sorted_indices.dim() == 1, "sorted_indices must be 1-D")
    require_dtype(name, "permuted_tokens", permuted_tokens, FLOATS)
    require_dtype(name, "sorted_indices", sorted_indices, (torch.int32,))
    topk = 1
    if probs is not None:
        require(name, probs.dim() == 2, f"probs must be 2-D, not {probs.dim()}-D")
        require_dtype(name, "probs", probs, FLOATS)
        require(
            name, probs.numel() == sorted_indices.numel(), "probs must have one value per index"
        )
        topk = probs.size(1)
    require(name, topk <= _MAX_TOPK, f"topK must be at most {_MAX_TOPK}, not {topk}")

    copies = _gather_rows(permuted_tokens, sorted_indices.long())
    if probs is not None:
        weights = probs.reshape(-1, 1).float()
        # The device skips a copy of probability zero, so a NaN in it does not reach the sum.
        copies = torch.where(weights == 0, 0.0, copies * weights)
    num_tokens = sorted_indices.numel() // max(topk, 1)
    _check_restore_shape(name, restore_shape, [num_tokens, permuted_tokens.size(1)])
    summed = copies.reshape(num_tokens, topk, permuted_tokens.size(1)).sum(1)
    return summed.to(permuted_tokens.dtype), permuted_tokens


@kernel("npu_moe_token_unpermute", document="torch_npu-npu_moe_token_unpermute")
def unpermute(
    permuted_tokens: Tensor,
    sorted_indices: Tensor,
    probs: Tensor | None = None,
    padded_mode: bool = False,
    restore_shape: list[int] | None = None,
) -> Tensor:
    """The first output of `unpermute_and_save`."""
    return unpermute_and_save(permuted_tokens, sorted_indices, probs, padded_mode, restore_shape)[0]


@kernel("npu_moe_token_unpermute_grad_v2", document="aclnnMoeTokenUnpermuteGrad")
def unpermute_grad_v2(
    grad_unpermuted_tokens: Tensor,
    sorted_indices: Tensor,
    permuted_tokens_size_0: int,
    permuted_tokens_dtype: torch.dtype,
    probs: Tensor | None = None,
    padded_mode: bool = False,
    restore_shape: list[int] | None = None,
    permuted_tokens: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Gradients of `unpermute`: [m, h] for the tokens and [n, k] for the probabilities."""
    name = "npu_moe_token_unpermute_grad_v2"
    require(name, not padded_mode, "padded_mode must be False")
    positions = sorted_indices.long()
    topk = 1 if probs is None else probs.size(1)
    grad_copies = grad_unpermuted_tokens.float().repeat_interleave(topk, 0)
    grad_probs = None
    if probs is not None:
        require(name, permuted_tokens is not None, "probs needs permuted_tokens")
        assert permuted_tokens is not None
        dots = (grad_copies * _gather_rows(permuted_tokens, positions)).sum(1)
        grad_probs = dots.reshape(probs.shape).to(probs.dtype)
        grad_copies = grad_copies * probs.reshape(-1, 1).float()
    grad_rows = _scatter_rows(grad_copies, positions, permuted_tokens_size_0)
    return grad_rows.to(permuted_tokens_dtype), grad_probs


@kernel("npu_moe_token_unpermute_grad", document="aclnnMoeTokenUnpermuteGrad")
def unpermute_grad(
    permuted_tokens: Tensor,
    grad_unpermuted_tokens: Tensor,
    sorted_indices: Tensor,
    probs: Tensor | None = None,
    padded_mode: bool = False,
    restore_shape: list[int] | None = None,
) -> tuple[Tensor, Tensor | None]:
    """The older form of `unpermute_grad_v2`."""
    return unpermute_grad_v2(
        grad_unpermuted_tokens,
        sorted_indices,
        permuted_tokens.size(0),
        permuted_tokens.dtype,
        probs,
        padded_mode,
        restore_shape,
        permuted_tokens,
    )
