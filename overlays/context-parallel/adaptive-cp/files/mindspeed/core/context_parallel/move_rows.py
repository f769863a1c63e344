"""Move rows between ranks (all-to-all), differentiably, and rows and columns of a mask with them.

Dims: s rows of the group, l = s / p rows of this rank, b batch, n heads, p ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from mindspeed.core.context_parallel.exchange import ProcessGroup, exchange_parts, find_device
from mindspeed.core.context_parallel.placement import Placement
from torch import Tensor


@dataclass(frozen=True)
class Route:
    """Which rows of this rank go where.

    Attributes:
        order: [s], on the CPU: all rows as they lie afterwards, rank after rank.
        leaving: [l]: this rank's rows, those for rank 0 first.
        sent: rows for each rank.
        received: rows from each rank.
        arriving: [l]: for each row afterwards, which of the received ones it is.
    """

    order: Tensor
    leaving: Tensor
    sent: tuple[int, ...]
    received: tuple[int, ...]
    arriving: Tensor

    def back(self) -> "Route":
        """The inverse; its `order` is not that of all rows."""
        return Route(
            self.order,
            torch.argsort(self.arriving),
            self.received,
            self.sent,
            torch.argsort(self.leaving),
        )


def plan_route(order: Tensor, placement: Placement, rank: int, device: torch.device) -> Route:
    """A rank's part in bringing rows from where they are into an order.

    Args:
        order: [s], on the CPU: all rows, those of rank 0 first, l for each.
        placement: where the rows are.
        rank: this one.
        device: of the rows.
    """
    p = len(placement.ranges)
    owner, local = torch.empty_like(order), torch.empty_like(order)
    for peer, held in enumerate(placement.ranges):
        rows = torch.cat([torch.arange(a, b) for a, b in held])
        owner[rows], local[rows] = peer, torch.arange(len(rows))
    after = order.view(p, -1)
    leaving = [local[rows[owner[rows] == rank]] for rows in after]
    source = owner[after[rank]]
    return Route(
        order,
        torch.cat(leaving).to(device),
        tuple(len(rows) for rows in leaving),
        tuple(torch.bincount(source, minlength=p).tolist()),
        torch.argsort(torch.argsort(source, stable=True)).to(device),
    )


def move_rows(tensors: Sequence[Tensor], route: Route, group: ProcessGroup) -> list[Tensor]:
    """Tensors [l, ...] with the rows that a route brings here; one collective, one backward."""
    return list(_MoveRows.apply(route, group, *tensors))


class _MoveRows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, route: Route, group: ProcessGroup, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.route, ctx.group = route, group
        return _move(tensors, route, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *_move(grads, ctx.route.back(), ctx.group)


def _move(tensors: Sequence[Tensor], route: Route, group: ProcessGroup) -> tuple[Tensor, ...]:
    """Rows of all tensors side by side, so that one message goes to each rank."""
    flat = torch.cat([x.flatten(1) for x in tensors], 1)
    width = flat.shape[1]
    received = exchange_parts(
        flat.index_select(0, route.leaving),
        [rows * width for rows in route.sent],
        [rows * width for rows in route.received],
        group,
    )
    placed = received.view(-1, width).index_select(0, route.arriving)
    columns = placed.split([x[0].numel() for x in tensors], 1)
    return tuple(c.reshape(x.shape) for c, x in zip(columns, tensors, strict=True))


def move_mask(mask: Tensor, route: Route, group: ProcessGroup) -> Tensor:
    """A rank's rows of a mask after a route, with all columns in the new order.

    Block after block, so that no more of a mask on the CPU comes to the device at once.

    Args:
        mask: bool [1 or b, 1 or n, l, s], this rank's rows before.
        route: of the rows.
        group: all of its ranks must call.

    Returns:
        [1 or b, 1 or n, l, s], on the device of `mask`.
    """
    device, blocks = find_device(group), []
    for columns in route.order.chunk(group.size()):
        block = mask.index_select(-1, columns.to(mask.device)).movedim(-2, 0).to(device)
        (moved,) = _move([block.contiguous().view(torch.uint8)], route, group)
        blocks.append(moved.view(torch.bool).movedim(0, -2).to(mask.device))
    return torch.cat(blocks, -1)
