"""Masks that come as tensors: the rows of a rank, and of a group of ranks.

A mask is the same for every layer, so what is made of it is kept for the last one seen. The mask
itself is kept with it: its memory cannot become another mask's meanwhile.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from mindspeed.core.context_parallel.exchange import ProcessGroup, find_device, gather_parts
from mindspeed.core.context_parallel.placement import Placement, order_rows
from torch import Tensor

_last: dict[Any, tuple[Tensor, int, Any]] = {}


def once(name: Any, mask: Tensor, make: Callable[[], Any]) -> Any:
    """What `make` makes of a mask; made anew for another mask than the last one of that name."""
    found = _last.get(name)
    if found is not None:
        seen, version, made = found
        same = seen.data_ptr() == mask.data_ptr() and version == mask._version
        if same and seen.shape == mask.shape and seen.stride() == mask.stride():
            return made
    made = make()
    _last[name] = (mask, mask._version, made)
    return made


def read_rows(mask: Tensor, placement: Placement, rank: int) -> Tensor:
    """A rank's rows of a mask over the whole sequence.

    Args:
        mask: bool, [..., l, s] (this rank's rows, as `get_batch_on_this_cp_rank` cuts it) or
            [..., s, s] (all rows).
        placement: of all rows.
        rank: this one.

    Returns:
        [1 or b, 1 or n, l, s].

    Raises:
        ValueError: another dtype or shape.
    """
    length, own = sum(placement.lengths), placement.lengths[rank]
    if mask.dtype is not torch.bool:
        raise ValueError(f"attention_mask must be bool, true where masked, not {mask.dtype}")
    if (
        mask.dim() not in (2, 3, 4)
        or mask.shape[-1] != length
        or mask.shape[-2] not in (own, length)
    ):
        raise ValueError(
            f"attention_mask of shape {list(mask.shape)} has neither the {own} rows of this "
            f"context-parallel rank nor all {length}, against {length} keys"
        )
    mask = mask.view([1] * (4 - mask.dim()) + list(mask.shape))
    if mask.shape[-2] == own:
        return mask

    def cut() -> Tensor:
        return torch.cat([mask[..., a:b, :] for a, b in placement.ranges[rank]], -2)

    rows: Tensor = once("rows", mask, cut)
    return rows


def is_causal(rows: Tensor, placement: Placement, group: ProcessGroup) -> bool:
    """Whether a mask is the causal one; waits for the device once.

    All ranks of the group must call, and get the same answer: a mask may differ from the causal one
    in the rows of some of them only.
    """

    def compare() -> bool:
        ranges = placement.ranges[group.rank()]
        held = [torch.arange(a, b, device=rows.device) for a, b in ranges]
        later = torch.arange(rows.shape[-1], device=rows.device) > torch.cat(held)[:, None]
        same = (rows == later).all().to(find_device(group), torch.int32)
        dist.all_reduce(same, dist.ReduceOp.MIN, group=group)
        return bool(same)

    causal: bool = once(("causal", group), rows, compare)
    return causal


def gather_rows(rows: Tensor, placement: Placement, group: ProcessGroup) -> Tensor:
    """The rows of all ranks of a group, in global order.

    Args:
        rows: [1 or b, 1 or n, l, s], this rank's.
        placement: of the group's rows, l for each rank.
        group: all of its ranks must call.
    """

    def gather() -> Tensor:
        held = rows.to(find_device(group)).contiguous()
        parts = gather_parts(held.view(-1), [held.numel()] * group.size(), group)
        whole = order_rows([part.view(held.shape) for part in parts], placement, axis=-2)
        return whole.to(rows.device)

    gathered: Tensor = once(("gathered", group), rows, gather)
    return gathered
