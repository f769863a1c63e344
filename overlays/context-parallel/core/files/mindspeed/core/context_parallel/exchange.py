"""The exchanges that context-parallel attention is made of. Each takes the groups it uses.

    PointToPoint     the messages of a schedule's step, on one communicator or several
    exchange_parts   everyone's parts for everyone (all-to-all)
    gather_parts     everyone's tensor (all-gather)
    reduce_parts     the sum of everyone's, each its own part (reduce-scatter)

None of them is differentiable by itself; the algorithms are.

Dims: p ranks of a group.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from mindspeed.core.context_parallel.schedule import Move
from torch import Tensor

ProcessGroup = dist.ProcessGroup


def find_device(group: ProcessGroup) -> torch.device:
    """Where the tensors of a group's collectives must be."""
    if dist.get_backend(group) == "gloo":
        return torch.device("cpu")
    accelerator = torch.accelerator.current_accelerator()
    assert accelerator is not None
    return torch.device(accelerator.type, torch.accelerator.current_device_index())


class Flight:
    """Messages that were launched together and are waited for together, once."""

    def __init__(self, handles: Sequence[Any]) -> None:
        self._handles = list(handles)

    def wait(self) -> None:
        """Wait; a second time does nothing."""
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.wait()


@dataclass(frozen=True)
class PointToPoint:
    """Sends and receives among the ranks of a group.

    Attributes:
        lanes: one communicator or more, all of the same ranks in the same order. A message of
            lane i uses communicator i modulo their number. With one, what a rank sends and
            receives at once goes as one batch for each pair of lanes (a ring); with more, each by
            itself.
    """

    lanes: tuple[ProcessGroup, ...]

    def launch(
        self,
        moves: Sequence[Move],
        *,
        outgoing: Callable[[Move], Tensor],
        incoming: Callable[[Move], Tensor],
    ) -> list[tuple[Move, Flight]]:
        """Launch this rank's part of some moves.

        Args:
            moves: the same on every rank and in the same order: that is how messages find each
                other, for the device's communicators know no tags.
            outgoing: the tensor to send, contiguous.
            incoming: the tensor to receive into, contiguous.

        Returns:
            Each move of this rank, and what to wait for before its tensor is used again.
        """
        rank = self.lanes[0].rank()
        batches: dict[int, list[tuple[Move, Any]]] = {}
        for number, move in enumerate(moves):
            if rank not in (move.src, move.dst):
                continue
            group = self.lanes[move.lane % len(self.lanes)]
            batch = batches.setdefault(move.lane // 2 if len(self.lanes) == 1 else number, [])
            if move.src == rank:
                peer = dist.get_global_rank(group, move.dst)
                batch.append((move, dist.P2POp(dist.isend, outgoing(move), peer, group)))
            else:
                peer = dist.get_global_rank(group, move.src)
                batch.append((move, dist.P2POp(dist.irecv, incoming(move), peer, group)))
        launched = []
        for batch in batches.values():
            if len(self.lanes) == 1:
                flight = Flight(dist.batch_isend_irecv([op for _, op in batch]))
            else:
                flight = Flight([op.op(op.tensor, op.peer, op.group) for _, op in batch])
            launched += [(move, flight) for move, _ in batch]
        return launched


def exchange_parts(
    source: Tensor, sent: Sequence[int], received: Sequence[int], group: ProcessGroup
) -> Tensor:
    """All-to-all of flat tensors.

    Args:
        source: contiguous: what goes to rank 0, then what goes to rank 1, and so on.
        sent: elements for each rank.
        received: elements from each rank.
        group: all of its ranks must call.

    Returns:
        What came from rank 0, then what came from rank 1, and so on, as one flat tensor.
    """
    target = source.new_empty(sum(received))
    dist.all_to_all_single(target, source.view(-1), list(received), list(sent), group=group)
    return target


def gather_parts(x: Tensor, lengths: Sequence[int], group: ProcessGroup) -> list[Tensor]:
    """All-gather of flat tensors; unequal ones are padded to the longest.

    Args:
        x: [lengths[rank]], contiguous.
        lengths: elements of each rank.
        group: all of its ranks must call.

    Returns:
        Each rank's tensor: views of one new tensor.
    """
    longest = max(lengths)
    if x.numel() < longest:
        x = torch.nn.functional.pad(x, (0, longest - x.numel()))
    target = x.new_empty(len(lengths) * longest)
    dist.all_gather_into_tensor(target, x, group=group)
    rows = target.view(len(lengths), longest)
    return [row[:length] for row, length in zip(rows, lengths, strict=True)]


def reduce_parts(
    parts: Sequence[Sequence[Tensor]], lengths: Sequence[int], group: ProcessGroup
) -> Tensor:
    """Reduce-scatter of flat tensors; unequal ones are padded to the longest.

    Args:
        parts: for each rank, the pieces of this rank's share.
        lengths: elements for each rank.
        group: all of its ranks must call.

    Returns:
        The sum of all shares for this rank, flat.
    """
    longest = max(lengths)
    pieces = []
    for held, length in zip(parts, lengths, strict=True):
        pieces += [piece.reshape(-1) for piece in held]
        if length < longest:
            pieces.append(pieces[0].new_zeros(longest - length))
    source = torch.cat(pieces)
    target = source.new_empty(longest)
    dist.reduce_scatter_tensor(target, source, group=group)
    return target[: lengths[group.rank()]]


def pack(tensors: Sequence[Tensor]) -> Tensor:
    """One flat tensor of several, each written once, strided or not."""
    flat = tensors[0].new_empty(sum(x.numel() for x in tensors))
    for target, x in zip(unpack(flat, [x.shape for x in tensors]), tensors, strict=True):
        target.copy_(x)
    return flat


def unpack(flat: Tensor, shapes: Sequence[torch.Size | tuple[int, ...]]) -> list[Tensor]:
    """The tensors that `pack` has put into one, as views."""
    sizes = [math.prod(shape) for shape in shapes]
    return [part.view(shape) for part, shape in zip(flat.split(sizes), shapes, strict=True)]
