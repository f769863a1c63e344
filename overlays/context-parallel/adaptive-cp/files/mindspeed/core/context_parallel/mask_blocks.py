"""A mask that its user gives block by block, for --adaptive-cp-manually-set-mask-list.

No tensor of the whole mask ever exists: neither s * s flags, nor time to look at them.

    set_mask_blocks(needs, make)
    model(tokens, position_ids, None, labels=labels)

Dims: s rows of the whole sequence, l rows of a rank, b batch, n heads, p ranks of the ring.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from mindspeed.core.context_parallel.block_kernel import Mask
from mindspeed.core.context_parallel.circulate import Tile
from mindspeed.core.context_parallel.placement import Placement
from mindspeed.core.context_parallel.shard import Part
from mindspeed.core.context_parallel.tiles import Tiler
from torch import Tensor

MakeBlock = Callable[[Tensor, Tensor], Tensor]
"""Of the numbers of query rows [l] and key rows [l], both in the whole sequence: bool [1 or b, 1 or
n, l, l], True where a key may not be seen."""


@dataclass(frozen=True)
class MaskBlocks:
    """What a user has set.

    Attributes:
        needs: for each rank of the ring, which rank's rows its own rows may see anything of.
        make: makes a block; called once for each that is needed.
    """

    needs: tuple[tuple[bool, ...], ...]
    make: MakeBlock
    made: dict[tuple[Placement, int, int], Tensor] = field(default_factory=dict)

    def tile(self, placement: Placement, rank: int, device: torch.device) -> Tiler:
        """The calls for a block."""

        def number(held: int) -> Tensor:
            ranges = placement.ranges[held]
            return torch.cat([torch.arange(a, b, device=device) for a, b in ranges])

        def tiles(block: int) -> Sequence[Tile]:
            key = (placement, rank, block)
            if key not in self.made:
                self.made[key] = self.make(number(rank), number(block))
            return [Tile(Part.ALL, Part.ALL, Mask(given=self.made[key]))]

        return tiles


_set: list[MaskBlocks] = []


def set_mask_blocks(needs: Sequence[Sequence[bool]], make: MakeBlock) -> None:
    """Set the mask of all following forward passes.

    Args:
        needs: p times p, the same on all ranks: whether rows of a rank may see rows of another.
            Rows are where Megatron puts them: rank r has the chunks r and 2p - 1 - r of 2p.
        make: see `MakeBlock`.
    """
    _set[:] = [MaskBlocks(tuple(tuple(map(bool, row)) for row in needs), make)]


def read_mask_blocks(num_ranks: int) -> MaskBlocks:
    """What was set.

    Raises:
        ValueError: nothing, or for another number of ranks.
    """
    if not _set:
        raise ValueError(
            "--adaptive-cp-manually-set-mask-list: call "
            "mindspeed.core.context_parallel.mask_blocks.set_mask_blocks before the first step"
        )
    shape = {len(_set[0].needs), *(len(row) for row in _set[0].needs)}
    if shape != {num_ranks}:
        raise ValueError(
            f"set_mask_blocks: needs must be {num_ranks} times {num_ranks}, one for each rank of "
            f"the ring, not {sorted(shape)}"
        )
    return _set[0]
