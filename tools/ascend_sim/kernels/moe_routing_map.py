"""MoE token permutation from a routing map [n, e] of who goes where, instead of expert indices.

Operators: npu_moe_token_(un)permute_with_routing_map, the private unpermute with its four outputs,
and both gradients. Two modes: every token goes to exactly k experts, or (`drop_and_pad`) every
expert takes exactly c tokens: its own first, in token order, and then, to fill up, the first of the
others. Follows the torch_npu operator pages and the aclnnMoeToken*WithRoutingMap* pages of CANN.

Dims as in `moe`. Expert-major order: by expert, and by token within an expert.
"""

import torch
from torch import Tensor

from ascend_sim.kernels.rules import FLOATS, refuse, require, require_dtype
from ascend_sim.registry import kernel

_MAX_TOPK = 512


def _check_map(name: str, routing_map: Tensor) -> None:
    require(name, routing_map.dim() == 2, "routing_map must be 2-D")
    require_dtype(name, "routing_map", routing_map, (torch.int8, torch.bool))
    if routing_map.dtype == torch.int8:
        zeros_and_ones = bool(((routing_map == 0) | (routing_map == 1)).all())
        require(name, zeros_and_ones, "an int8 routing_map holds only 0 and 1")


def _check_probs(name: str, probs: Tensor, tokens: Tensor) -> None:
    mixed = probs.dtype == torch.float32 and tokens.dtype == torch.bfloat16
    require(
        name,
        probs.dtype == tokens.dtype or mixed,
        f"probs must have the dtype of the tokens (or float32 with bfloat16), not {probs.dtype}",
    )


def _choose_with_capacity(routing_map: Tensor, capacity: int) -> Tensor:
    """[e·c] token numbers: each expert's own tokens first, then others, each in token order."""
    order = torch.argsort(routing_map.T.to(torch.int8), dim=1, descending=True, stable=True)
    return order[:, :capacity].reshape(-1)


def _select_expert_major(values: Tensor, routing_map: Tensor) -> Tensor:
    return values.T[routing_map.T.bool()]


def _expert_of_slot(num_slots: int, num_experts: int) -> Tensor:
    return torch.arange(num_experts).repeat_interleave(num_slots // max(num_experts, 1))


@kernel(
    "npu_moe_token_permute_with_routing_map",
    document="torch_npu-npu_moe_token_permute_with_routing_map",
)
def permute_with_routing_map(
    tokens: Tensor,
    routing_map: Tensor,
    *,
    probs: Tensor | None = None,
    num_out_tokens: int | None = None,
    drop_and_pad: bool = False,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Copy the tokens, and their probabilities, into expert-major order.

    Args:
        tokens: [n, h], fp16, bf16 or fp32.
        routing_map: [n, e], bool or int8 of 0 and 1; without `drop_and_pad` k ones in each row.
        probs: [n, e], dtype of the tokens, or fp32 with bf16 tokens.
        num_out_tokens: n·k or, with `drop_and_pad`, e·c, rounded down to a multiple; None is n.
        drop_and_pad: fixed capacity c for each expert.

    Returns:
        Tokens [m, h], probabilities [m] or None, and int32 [m]: without `drop_and_pad` the row of
        the j-th copy of token i at [i·k + j], with it the token of each row.

    Raises:
        RuntimeError: a documented rule is broken.
    """
    name = "npu_moe_token_permute_with_routing_map"
    require(name, tokens.dim() == 2, "tokens must be 2-D")
    require_dtype(name, "tokens", tokens, FLOATS)
    _check_map(name, routing_map)
    num_tokens, num_experts = routing_map.shape
    require(name, num_tokens == tokens.size(0), "routing_map and tokens must have the same rows")
    if probs is not None:
        require(name, probs.shape == routing_map.shape, "probs must have the shape of routing_map")
        _check_probs(name, probs, tokens)
    rows = tokens.size(0) if num_out_tokens is None else num_out_tokens
    require(name, 0 <= rows <= routing_map.numel(), f"num_out_tokens {rows} is outside [0, n * e]")

    if drop_and_pad:
        chosen = _choose_with_capacity(routing_map, rows // max(num_experts, 1))
        experts = _expert_of_slot(chosen.numel(), num_experts)
        picked = None if probs is None else probs[chosen, experts]
        return tokens[chosen], picked, chosen.to(torch.int32)

    topk = rows // max(num_tokens, 1)
    require(name, topk < _MAX_TOPK, f"topK must be less than {_MAX_TOPK}, not {topk}")
    per_row = routing_map.sum(1, dtype=torch.int64)
    require(
        name,
        bool((per_row == topk).all()),
        f"every row of routing_map must hold num_out_tokens // tokens = {topk} ones",
    )
    token_numbers = torch.arange(num_tokens).unsqueeze(1).expand(num_tokens, num_experts)
    chosen = _select_expert_major(token_numbers, routing_map)
    # Stable, so the copies of one token keep the order of their experts.
    sorted_indices = torch.argsort(chosen, stable=True).to(torch.int32)
    picked = None if probs is None else _select_expert_major(probs, routing_map)
    return tokens[chosen], picked, sorted_indices


@kernel(
    "npu_moe_token_permute_with_routing_map_grad",
    document="aclnnMoeTokenPermuteWithRoutingMapGrad",
)
def permute_with_routing_map_grad(
    permuted_token_out_grad: Tensor | None,
    probs_grad: Tensor | None,
    sorted_indices: Tensor,
    routing_map: Tensor,
    experts_num: int,
    tokens_num: int,
    drop_and_pad: bool,
) -> tuple[Tensor, Tensor | None]:
    """Gradients of `permute_with_routing_map`: [n, h] for tokens and [n, e] for probabilities.

    Raises:
        RuntimeError: only the probabilities were used; the operator needs the tokens' gradient.
    """
    name = "npu_moe_token_permute_with_routing_map_grad"
    require(name, permuted_token_out_grad is not None, "permuted_token_out_grad must be given")
    assert permuted_token_out_grad is not None
    grad = permuted_token_out_grad.float()
    positions = sorted_indices.long()
    if drop_and_pad:
        grad_tokens = grad.new_zeros((tokens_num, grad.size(1))).index_add_(0, positions, grad)
    else:
        topk = positions.numel() // max(tokens_num, 1)
        grad_tokens = grad[positions].reshape(tokens_num, topk, grad.size(1)).sum(1)
    grad_probs = None
    if probs_grad is not None:
        grad_probs = probs_grad.new_zeros((tokens_num, experts_num))
        if drop_and_pad:
            experts = _expert_of_slot(positions.numel(), experts_num)
            grad_probs[positions, experts] = probs_grad
        else:
            grad_probs.T[routing_map.T.bool()] = probs_grad
    return grad_tokens.to(permuted_token_out_grad.dtype), grad_probs


@kernel(
    "_npu_moe_token_unpermute_with_routing_map",
    document="torch_npu-npu_moe_token_unpermute_with_routing_map",
)
def unpermute_with_routing_map_and_save(
    permuted_tokens: Tensor,
    sorted_indices: Tensor,
    restore_shape: list[int],
    *,
    probs: Tensor | None = None,
    routing_map: Tensor | None = None,
    drop_and_pad: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Add expert outputs back to their tokens, weighted by `probs`.

    Args:
        permuted_tokens: [m, h], fp16, bf16 or fp32.
        sorted_indices: [m] int32, the third output of `permute_with_routing_map`.
        restore_shape: [n, h], the shape of the result.
        probs: [n, e], dtype of the tokens, or fp32 with bf16 tokens; needs `routing_map`.
        routing_map: [n, e], bool or int8.
        drop_and_pad: as when permuting.

    Returns:
        Tokens [n, h]; the row and the token of each summand, both int32 [m], in the order of the
        sum; the probabilities [m] of the rows, or None.

    Raises:
        RuntimeError: a documented rule is broken.
        NotImplementedError: `sorted_indices` holds -1 (a slot without a token).
    """
    name = "npu_moe_token_unpermute_with_routing_map"
    require(name, permuted_tokens.dim() == 2, "permuted_tokens must be 2-D")
    require(name, sorted_indices.dim() == 1, "sorted_indices must be 1-D")
    require(name, len(restore_shape) == 2, "restore_shape must hold two sizes")
    require_dtype(name, "permuted_tokens", permuted_tokens, FLOATS)
    require_dtype(name, "sorted_indices", sorted_indices, (torch.int32,))
    num_slots = sorted_indices.numel()
    require(name, num_slots == permuted_tokens.size(0), "sorted_indices must have one per row")
    if bool((sorted_indices < 0).any()):
        refuse(name, "-1 in sorted_indices")
    if probs is not None:
        require(name, routing_map is not None, "probs needs routing_map")
        _check_probs(name, probs, permuted_tokens)
    if routing_map is not None:
        _check_map(name, routing_map)

    num_tokens = restore_shape[0]
    positions = sorted_indices.long()
    if drop_and_pad:
        token_ids, rows = torch.sort(positions, stable=True)
    else:
        topk = num_slots // max(num_tokens, 1)
        require(name, topk <= _MAX_TOPK, f"topK must be at most {_MAX_TOPK}, not {topk}")
        token_ids, rows = torch.arange(num_slots) // max(topk, 1), positions

    weighted = permuted_tokens.float()
    permute_probs = None
    if probs is not None:
        assert routing_map is not None
        if drop_and_pad:
            permute_probs = probs[positions, _expert_of_slot(num_slots, probs.size(1))]
        else:
            permute_probs = _select_expert_major(probs, routing_map)
            require(name, permute_probs.numel() == num_slots, "routing_map must hold one 1 per row")
        weighted = weighted * permute_probs.unsqueeze(1).float()
    summed = weighted.new_zeros(list(restore_shape)).index_add_(0, token_ids, weighted[rows])
    index_dtype = sorted_indices.dtype
    return (
        summed.to(permuted_tokens.dtype),
        rows.to(index_dtype),
        token_ids.to(index_dtype),
        permute_probs,
    )


@kernel(
    "npu_moe_token_unpermute_with_routing_map",
    document="torch_npu-npu_moe_token_unpermute_with_routing_map",
)
def unpermute_with_routing_map(
    permuted_tokens: Tensor,
    sorted_indices: Tensor,
    restore_shape: list[int],
    *,
    probs: Tensor | None = None,
    routing_map: Tensor | None = None,
    drop_and_pad: bool = False,
) -> Tensor:
    """The first output of `unpermute_with_routing_map_and_save`."""
    return unpermute_with_routing_map_and_save(
        permuted_tokens,
        sorted_indices,
        restore_shape,
        probs=probs,
        routing_map=routing_map,
        drop_and_pad=drop_and_pad,
    )[0]


@kernel(
    "npu_moe_token_unpermute_with_routing_map_grad",
    document="aclnnMoeTokenUnpermuteWithRoutingMapGrad",
)
def unpermute_with_routing_map_grad(
    unpermuted_tokens_grad: Tensor,
    out_index: Tensor,
    permuted_token_id: Tensor,
    routing_map: Tensor | None,
    permuted_tokens: Tensor | None,
    probs: Tensor | None,
    drop_and_pad: bool,
    restore_shape: list[int],
) -> tuple[Tensor, Tensor | None]:
    """Gradients of the unpermutation: [m, h] for the tokens, [n, e] for the probabilities.

    Both have the dtype of the incoming gradient. Without `drop_and_pad` torch_npu's own formula
    passes `sorted_indices` for `permuted_token_id` too, so there the token is counted, not read.
    """
    name = "npu_moe_token_unpermute_with_routing_map_grad"
    grad = unpermuted_tokens_grad.float()
    rows, num_slots = out_index.long(), out_index.numel()
    if drop_and_pad:
        token_ids = permuted_token_id.long()
    else:
        token_ids = torch.arange(num_slots) // max(num_slots // max(grad.size(0), 1), 1)
    grad_rows = grad.new_zeros((num_slots, grad.size(1)))
    grad_rows[rows] = grad[token_ids]
    dtype = unpermuted_tokens_grad.dtype
    if probs is None:
        return grad_rows.to(dtype), None

    require(name, permuted_tokens is not None, "probs needs permuted_tokens")
    require(name, routing_map is not None, "probs needs routing_map")
    assert permuted_tokens is not None
    assert routing_map is not None
    dots = (grad_rows * permuted_tokens.float()).sum(1)
    grad_probs = grad.new_zeros(probs.shape)
    if drop_and_pad:
        experts = rows // (num_slots // probs.size(1))
        grad_probs[token_ids, experts] = dots[rows]
        row_probs = torch.empty_like(dots)
        row_probs[rows] = probs[token_ids, experts].float()
    else:
        grad_probs.T[routing_map.T.bool()] = dots
        row_probs = _select_expert_major(probs, routing_map).float()
    return (grad_rows * row_probs.unsqueeze(1)).to(dtype), grad_probs.to(dtype)
