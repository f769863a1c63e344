"""The adaptive algorithms on ranks, posed as a layer of a model poses them."""

from typing import Any

import torch.distributed as dist
from torch import Tensor

from features.context_parallel.cp_case import Case, make_groups, own_rows


def run_adaptive(case: Case, kernel: Any, hidden: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Any:
    """Run the adaptive algorithms on this rank's tensors; returns this rank's output."""
    from mindspeed.core.context_parallel import adaptive, choice, groups, mask_blocks, problem

    size, rank = dist.get_world_size(), dist.get_rank()
    u = case.ulysses if case.algorithm == "hybrid_adaptive" else 1
    near = [make_groups(tuple(range(i * u, i * u + u)), 1)[0] for i in range(size // u)]
    far = [make_groups(tuple(range(i, size, u)), case.lanes) for i in range(u)]
    adapt = choice.Adapt(**case.adapt)
    mask = None
    if adapt.own_blocks:
        rows = [own_rows(case, peer, size // u) for peer in range(size // u)]
        needs = [[not bool(hidden[a][:, b].all()) for b in rows] for a in rows]
        mask_blocks.set_mask_blocks(needs, lambda a, b: _cut_block(hidden, a, b))
    else:
        mask = _own_mask(hidden, case, "cpu" if adapt.mask_on_cpu else str(q.device.type))
    row = next(a for a in choice.ALGORITHMS if a.function == f"attend_{case.algorithm}")
    chosen = choice.Choice(row, size, u, fused_merge=case.fused_merge, keep=case.keep, adapt=adapt)
    whole = groups.Groups(make_groups(tuple(range(size)), 1)[0], near[rank // u], far[rank % u])
    posed = problem.Problem(kernel, "given", (0, case.length), mask=mask)
    attend = getattr(adaptive, row.function)
    return attend(q, k, v, posed, choice=chosen, groups=whole)


_own_masks: dict[int, tuple[Tensor, Tensor]] = {}


def _own_mask(hidden: Tensor, case: Case, device: str) -> Tensor:
    """This rank's rows as 4 dimensions; one tensor in every call, as in a model's layers."""
    if id(hidden) not in _own_masks:
        rows = hidden[..., own_rows(case, dist.get_rank(), dist.get_world_size()), :]
        rows = rows.view([1] * (4 - rows.dim()) + list(rows.shape)).to(device)
        _own_masks[id(hidden)] = (hidden, rows)
    return _own_masks[id(hidden)][1]


def _cut_block(hidden: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    block = hidden[rows.cpu()][:, columns.cpu()]
    return block.view(1, 1, len(rows), len(columns)).to(rows.device)
