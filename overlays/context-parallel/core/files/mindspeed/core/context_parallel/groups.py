"""The communicators of context parallelism, made once before a model is built.

Which ranks belong together is Megatron's: its context-parallel group. What an algorithm needs
beside it (sub-groups of the hybrid, second communicators of a ring) is made here, by all ranks of
the world in one order, also by those whose pipeline stage has no attention. Sub-groups that
`initialize_model_parallel(hierarchical_context_parallel_sizes=...)` has made are used as they are.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from mindspeed.core.context_parallel.choice import Choice, choose
from mindspeed.core.context_parallel.exchange import ProcessGroup, find_device


@dataclass(frozen=True)
class Groups:
    """Communicators of one rank.

    Attributes:
        whole: all p ranks of the context-parallel group, in order.
        ulysses: the neighbours that share heads with this rank.
        rings: communicators of the ranks that share rows with this rank: one, two with overlap,
            four with overlap in a double ring.
    """

    whole: ProcessGroup
    ulysses: ProcessGroup | None
    rings: tuple[ProcessGroup, ...]


# By the context-parallel group: of this rank, for (Ulysses degree, communicators of a ring).
_made: dict[ProcessGroup, dict[tuple[int, int], Groups]] = {}


def count_lanes(choice: Choice) -> int:
    """Communicators of a ring."""
    if not choice.overlap:
        return 1
    return 4 if choice.window > 1 else 2


def create_context_parallel_groups(config: Any) -> None:
    """Hook: make what the layers of a model will need.

    Args:
        config: of the model.

    Raises:
        ValueError: the settings of a layer cannot be.
    """
    from megatron.core import parallel_state

    _made.clear()
    if getattr(config, "context_parallel_size", 1) == 1 or not hasattr(config, "cp_comm_type"):
        return
    whole = parallel_state.get_context_parallel_group()
    ready = parallel_state.get_hierarchical_context_parallel_groups(check_initialized=False)
    layers = range(1, max(config.num_layers, 1) + 1)
    wanted = {(c.ulysses, count_lanes(c)) for c in (choose(config, layer) for layer in layers)}
    make = _make_groups_for_all_ranks(whole)
    _made[whole] = {key: _make(whole, *key, make=make, ready=ready) for key in sorted(wanted)}


def find_groups(whole: ProcessGroup, choice: Choice) -> Groups:
    """The communicators that a layer uses.

    A later model may need others than the first, or may have a context-parallel group of its own.
    Then the ranks of that group make them among themselves, in its first forward pass: they have
    the same layers.
    """
    key = (choice.ulysses, count_lanes(choice))
    made = _made.setdefault(whole, {})
    if key not in made:
        made[key] = _make(whole, *key, make=_make_groups_among(whole), ready=None)
    return made[key]


def _make(
    whole: ProcessGroup,
    ulysses: int,
    lanes: int,
    *,
    make: Callable[[Callable[[list[int]], list[list[int]]]], ProcessGroup],
    ready: Sequence[ProcessGroup] | None,
) -> Groups:
    p = whole.size()

    def near(ranks: list[int]) -> list[list[int]]:
        return [ranks[i : i + ulysses] for i in range(0, p, ulysses)]

    def far(ranks: list[int]) -> list[list[int]]:
        return [ranks[i::ulysses] for i in range(ulysses)]

    if ulysses == 1:
        return Groups(whole, None, (whole, *(make(far) for _ in range(lanes - 1))))
    if ulysses == p:
        return Groups(whole, whole, ())
    if ready and [group.size() for group in ready] == [ulysses, p // ulysses]:
        heads, ring = ready
    else:
        heads, ring = make(near), make(far)
    return Groups(whole, heads, (ring, *(make(far) for _ in range(lanes - 1))))


def _make_groups_for_all_ranks(
    whole: ProcessGroup,
) -> Callable[[Callable[[list[int]], list[list[int]]]], ProcessGroup]:
    """A maker of process groups that cut every context-parallel group of the world alike."""
    everyone: list[tuple[int, ...]] = []

    def make(cut: Callable[[list[int]], list[list[int]]]) -> ProcessGroup:
        if not everyone:
            everyone.extend(_gather_ranks(whole))
        mine: ProcessGroup | None = None
        for ranks in everyone:
            for part in cut(list(ranks)):
                group = dist.new_group(part)
                if dist.get_rank() in part:
                    mine = group
        assert mine is not None
        return mine

    return make


def _make_groups_among(
    whole: ProcessGroup,
) -> Callable[[Callable[[list[int]], list[list[int]]]], ProcessGroup]:
    """A maker of process groups that only the ranks of one context-parallel group take part in."""

    def make(cut: Callable[[list[int]], list[list[int]]]) -> ProcessGroup:
        for part in cut(dist.get_process_group_ranks(whole)):
            if dist.get_rank() in part:
                return dist.new_group(part, use_local_synchronization=True)
        raise AssertionError("a rank is in none of the parts of its own group")

    return make


def _gather_ranks(whole: ProcessGroup) -> list[tuple[int, ...]]:
    """The ranks of every context-parallel group of the world, each once, in one order."""
    own = dist.get_process_group_ranks(whole)
    held = torch.tensor(own, dtype=torch.int64, device=find_device(whole))
    target = held.new_empty(dist.get_world_size() * len(own))
    dist.all_gather_into_tensor(target, held)
    rows = target.view(-1, len(own)).tolist()
    return sorted({tuple(row) for row in rows})
