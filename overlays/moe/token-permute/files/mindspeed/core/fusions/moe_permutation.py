"""Tokens in the order of their experts, and back, by one Ascend operator each.

    permuted[j] = tokens[token of slot j]                slots by expert, then by token
    tokens[i]   = sum over the slots j of token i of  permuted[j] * probs[i, expert of j]

Follows the torch_npu pages of `npu_moe_token_permute_with_routing_map` and
`npu_moe_token_unpermute_with_routing_map`. What the first returns as indices only the second reads:
it is the inverse of Megatron's, int32.

Dims: n tokens, e experts, m slots, h hidden.
"""

from collections.abc import Sequence

import torch
from mindspeed.core.operators import require_operator

_OPTION = "--use-fused-moe-token-permute-and-unpermute (use_fused_moe_token_permute_and_unpermute)"


def permute_tokens(
    tokens: torch.Tensor,
    routing_map: torch.Tensor,
    probs: torch.Tensor | None,
    num_out_tokens: int | None,
    drop_and_pad: bool,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """Copy each token to its experts' slots.

    Args:
        tokens: [n, h], on an NPU, fp16, bf16 or fp32.
        routing_map: [n, e], bool; without `drop_and_pad` as many ones in each row.
        probs: [n, e], dtype of the tokens, or fp32 with bf16 tokens.
        num_out_tokens: m; None counts the ones, which waits for the device.
        drop_and_pad: as many slots for each expert.

    Returns:
        [m, h], [m] or None, and int32 [m] for `unpermute_tokens`.

    Raises:
        RuntimeError: the operator cannot run on this machine.
    """
    torch_npu = require_operator("npu_moe_token_permute_with_routing_map", option=_OPTION)
    slots = int(routing_map.sum()) if num_out_tokens is None else int(num_out_tokens)
    permuted: tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]
    permuted = torch_npu.npu_moe_token_permute_with_routing_map(
        tokens,
        routing_map.bool(),
        probs=probs,
        num_out_tokens=slots,
        drop_and_pad=drop_and_pad,
    )
    moved, moved_probs, indices = permuted
    return moved, None if probs is None else moved_probs, indices


def unpermute_tokens(
    permuted: torch.Tensor,
    indices: torch.Tensor,
    restore_shape: Sequence[int],
    probs: torch.Tensor | None,
    routing_map: torch.Tensor | None,
    drop_and_pad: bool,
) -> torch.Tensor:
    """Add the slots of each token, weighted where there are probabilities.

    Args:
        permuted: [m, h].
        indices: of `permute_tokens`.
        restore_shape: (n, h).
        probs: [n, e], or None.
        routing_map: [n, e], needed with probs.
        drop_and_pad: as when permuting.

    Returns:
        [n, h], the dtype of `permuted`.

    Raises:
        RuntimeError: the operator cannot run on this machine.
    """
    torch_npu = require_operator("npu_moe_token_unpermute_with_routing_map", option=_OPTION)
    restored: torch.Tensor = torch_npu.npu_moe_token_unpermute_with_routing_map(
        permuted,
        indices,
        list(restore_shape),
        probs=probs,
        routing_map=None if routing_map is None else routing_map.bool(),
        drop_and_pad=drop_and_pad,
    )
    return restored
