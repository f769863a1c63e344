"""In which order rows make a sparse mask need the fewest rounds.

Rows are points of a graph, joined where one may see the other. Cuthill and McKee's order puts
neighbours of a point close to it, so that what is seen gathers about the diagonal, and parts that
do not see each other come one after the other ("Reducing the bandwidth of sparse symmetric
matrices", 1969). Ranks then hold such an order, or the rows' own, in one piece each or in a zigzag
of two, whichever needs the fewest rounds; of those, whichever leaves the most rows where they are.

Torch on the CPU only.

Dims: u units of rows, p ranks.
"""

import math

import torch
from torch import Tensor

COARSE_UNITS = 1024
"""At most so many units are looked at, unless each row is to be one."""


def size_unit(length: int, num_ranks: int, *, exact: bool) -> int:
    """Rows of a unit: every chunk of the zigzag holds whole units."""
    if exact:
        return 1
    chunk = length // (2 * num_ranks)
    wanted = math.ceil(length / COARSE_UNITS)
    return next(size for size in range(wanted, chunk + 1) if chunk % size == 0)


def choose_order(seen: Tensor, num_ranks: int) -> list[int] | None:
    """The units in the order in which the ranks should hold them, u / p each.

    Args:
        seen: bool [u, u], True where a row of the one may see a row of the other, in their own
            order; u is a multiple of 2p.
        num_ranks: p.

    Returns:
        None where the zigzag, in which they lie, needs no more rounds than any other.
    """
    natural = list(range(len(seen)))
    stay = deal_zigzag(natural, num_ranks)
    gathered = order_cuthill_mckee(seen)
    best, fewest = None, (count_rounds(seen, stay, num_ranks), 0)
    for order in (natural, gathered, deal_zigzag(gathered, num_ranks)):
        moved = count_moved(stay, order, num_ranks)
        found = (count_rounds(seen, order, num_ranks), moved)
        if found[0] < fewest[0] or (best is not None and found < fewest):
            best, fewest = order, found
    return best


def deal_zigzag(order: list[int], num_ranks: int) -> list[int]:
    """Cut into 2p chunks, and let rank r hold chunks r and 2p - 1 - r."""
    size = len(order) // (2 * num_ranks)
    chunks = [order[i : i + size] for i in range(0, len(order), size)]
    return [unit for r in range(num_ranks) for unit in chunks[r] + chunks[-1 - r]]


def count_rounds(seen: Tensor, order: list[int], num_ranks: int) -> int:
    """Steps of the shortest schedule: see `adaptive.schedule_needed`."""
    index = torch.tensor(order)
    share = len(order) // num_ranks
    grid = seen[index][:, index].view(num_ranks, share, num_ranks, share).any(3).any(1)
    grid.fill_diagonal_(False)
    return 1 + int(torch.maximum(grid.sum(0), grid.sum(1)).max())


def count_moved(before: list[int], after: list[int], num_ranks: int) -> int:
    """Units that change their rank."""
    share = len(before) // num_ranks
    return sum(
        len(set(after[i : i + share]) - set(before[i : i + share]))
        for i in range(0, len(before), share)
    )


def order_cuthill_mckee(seen: Tensor) -> list[int]:
    """Breadth first from a unit with few neighbours, those with few first; part after part."""
    joined = seen | seen.T
    degrees = joined.sum(1)
    left = torch.ones(len(seen), dtype=torch.bool)
    order: list[int] = []
    while len(order) < len(seen):
        start = int(torch.where(left, degrees, len(seen) + 1).argmin())
        left[start] = False
        order.append(start)
        reached = len(order) - 1
        while reached < len(order):
            found = (joined[order[reached]] & left).nonzero().flatten()
            left[found] = False
            order += found[degrees[found].argsort(stable=True)].tolist()
            reached += 1
    return order
