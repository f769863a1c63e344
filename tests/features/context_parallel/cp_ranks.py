"""What the tests of context-parallel attention run on ranks."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from features.context_parallel import dense

SCALE = 0.3


@dataclass(frozen=True)
class Case:
    """One comparison of an algorithm with dense attention."""

    algorithm: str
    mask: str = "causal"
    length: int = 32
    batch: int = 2
    heads: int = 8
    key_heads: int = 4
    width: int = 16
    value_width: int = 16
    starts: tuple[int, ...] = ()
    """Packed sequences: cumulative lengths with a leading 0; then batch is 1."""
    bnsd: bool = False
    dtype: torch.dtype = torch.float32
    lanes: int = 1
    fused_merge: bool = False
    keep: str = ""
    window: int = 1
    ulysses: int = 2
    npu: bool = False
    dropout: float = 0.0
    """On the device only."""
    uneven: tuple[int, ...] = ()
    """Rows of each rank, one after another, in place of the zigzag; masks are full or given."""
    cut_ring: bool = False
    """Rows of MindSpeed's hybrid: a zigzag over rings, each part cut among neighbours."""
    adapt: dict[str, Any] = field(default_factory=dict)
    """Of `choice.Adapt`, for the adaptive algorithms."""


def find_errors(cases: list[Case]) -> list[dict[str, float]]:
    """For each case, the largest relative error of this rank's output and gradients."""
    return [_compare(case) for case in cases]


def _compare(case: Case) -> dict[str, float]:
    own, given, grad, hidden, whole = make_inputs(case)
    rows = own_rows(case, dist.get_rank(), dist.get_world_size())
    out, dropped = _run_recording_dropout(case, given, hidden, whole)
    wanted = _run_dense([x.float() for x in whole], grad.float(), hidden, dropped)
    out.backward(grad[rows].to(out.device).view(out.shape))
    got = [out.view(len(rows), case.batch, case.heads, -1), *(x.grad for x in own)]
    errors = {}
    for name, x, want in zip(("out", "dq", "dk", "dv"), got, wanted, strict=True):
        assert x is not None
        assert x.dtype == case.dtype, name
        error = (x.detach().float().cpu() - want[rows]).abs().max() / want.abs().max()
        errors[name] = float(error)
    return errors


def _run_recording_dropout(
    case: Case, given: list[Tensor], hidden: Tensor, whole: list[Tensor]
) -> tuple[Tensor, Tensor | None]:
    """The output, and the factors of dropout [b, n, s, s] put together from every rank's calls."""
    if not case.dropout:
        return run_algorithm(case, given, hidden), None
    import torch_npu

    from features.context_parallel import cp_dropout

    torch.manual_seed(100 + dist.get_rank())
    with cp_dropout.record(torch_npu) as calls:
        out = run_algorithm(case, given, hidden)
    factors = cp_dropout.assemble(calls, whole[0], whole[1]).to(out.device)
    dist.all_reduce(factors)
    return out, factors.cpu()


def make_inputs(case: Case) -> tuple[list[Tensor], list[Tensor], Tensor, Tensor, list[Tensor]]:
    """This rank's leaves, as the algorithm wants them, the output's gradient, mask, all rows."""
    length, device = case.length, torch.device("npu" if case.npu else "cpu")
    generator = torch.Generator().manual_seed(5)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(case.dtype)

    whole = [
        draw(length, case.batch, heads, width)
        for heads, width in (
            (case.heads, case.width),
            (case.key_heads, case.width),
            (case.key_heads, case.value_width),
        )
    ]
    grad = draw(length, case.batch, case.heads, case.value_width)
    hidden = dense.hide(case.mask, length, list(case.starts or (0, length)))
    if case.mask == "given":
        hidden = torch.rand(case.batch, 1, length, length, generator=generator) > 0.6
        hidden[..., 0] = False
    rows = own_rows(case, dist.get_rank(), dist.get_world_size())
    own = [x[rows].to(device).requires_grad_() for x in whole]
    # Megatron has packed rows without a batch.
    given = [x.squeeze(1) for x in own] if case.starts else own
    return own, given, grad, hidden, whole


def _run_dense(
    whole: list[Tensor], grad: Tensor, hidden: Tensor, dropped: Tensor | None
) -> list[Tensor]:
    leaves = [x.clone().requires_grad_() for x in whole]
    out = dense.attend(*leaves, scale=SCALE, hidden=hidden, dropped=dropped)
    out.backward(grad)
    return [out.detach(), *(x.grad for x in leaves if x.grad is not None)]


def own_rows(case: Case, rank: int, size: int) -> Tensor:
    """Chunks r and 2p - 1 - r of each sequence: written apart from `placement`."""
    parts = []
    if case.uneven:
        start = sum(case.uneven[:rank])
        return torch.arange(start, start + case.uneven[rank])
    if case.cut_ring:
        ring, place = divmod(rank, case.ulysses)
        chunks = torch.arange(case.length).chunk(2 * size // case.ulysses)
        return torch.cat([chunks[ring], chunks[-1 - ring]]).chunk(case.ulysses)[place]
    for start, stop in pairwise(case.starts or (0, case.length)):
        chunks = torch.arange(start, stop).chunk(2 * size)
        parts += [chunks[rank], chunks[2 * size - 1 - rank]]
    return torch.cat(parts)


def run_algorithm(case: Case, tensors: list[Tensor], hidden: Tensor) -> Tensor:
    """Run one algorithm on this rank's tensors; returns this rank's output."""
    from mindspeed.core.context_parallel.block_kernel import NpuKernel
    from mindspeed.core.context_parallel.online_softmax import BNSD, SBND, TND

    layout = TND if case.starts else BNSD if case.bnsd else SBND
    make_kernel: Any = NpuKernel if case.npu else dense.TorchKernel
    kernel = make_kernel(layout, SCALE, *([1.0 - case.dropout] if case.npu else []))
    run: Callable[..., Tensor] = {
        "ring": _run_ring,
        "double_ring": _run_ring,
        "ulysses": _run_ulysses,
        "hybrid": _run_hybrid,
        "kv_allgather": _run_kv_allgather,
        "adaptive": _run_adaptive,
        "hybrid_adaptive": _run_adaptive,
        "uneven_ring": _run_uneven,
        "uneven_ulysses": _run_uneven,
    }[case.algorithm]
    rows_first = case.algorithm in ("ulysses", "hybrid", "adaptive", "hybrid_adaptive")
    if case.bnsd and not rows_first:
        out = run(case, kernel, hidden, *(x.permute(1, 2, 0, 3).contiguous() for x in tensors))
        return out.permute(2, 0, 1, 3)
    return run(case, kernel, hidden, *tensors)


@functools.cache
def _groups(ranks: tuple[int, ...], count: int) -> tuple[dist.ProcessGroup, ...]:
    """`count` communicators of one set of ranks; every rank of the world must call."""
    return tuple(dist.new_group(list(ranks)) for _ in range(count))


def _run_ring(case: Case, kernel: Any, hidden: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Any:
    size = dist.get_world_size()
    lanes = _groups(tuple(range(size)), case.lanes)
    return _ring(case, kernel, hidden, q, k, v, rank=dist.get_rank(), size=size, lanes=lanes)


def _ring(
    case: Case,
    kernel: Any,
    hidden: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    rank: int,
    size: int,
    lanes: tuple[dist.ProcessGroup, ...],
) -> Any:
    from mindspeed.core.context_parallel.circulate import Circulation, circulate
    from mindspeed.core.context_parallel.double_ring import schedule_double_ring
    from mindspeed.core.context_parallel.exchange import PointToPoint
    from mindspeed.core.context_parallel.placement import place_contiguous, place_packed_zigzag
    from mindspeed.core.context_parallel.ring import schedule_ring
    from mindspeed.core.context_parallel.schedule import check_schedule
    from mindspeed.core.context_parallel.shard import DenseShard, PackedShard
    from mindspeed.core.context_parallel.tiles import tile_causal, tile_full, tile_given

    if case.algorithm == "double_ring":
        schedule = schedule_double_ring(size, case.window)
    else:
        schedule = schedule_ring(size)
    check_schedule(schedule)
    shard: Any = DenseShard(case.length // size)
    if case.starts:
        shard = PackedShard(tuple(end // size for end in case.starts[1:]), q.device)
    if case.uneven:
        placement = place_contiguous(case.uneven)
        blocks: list[Any] = [DenseShard(rows) for rows in case.uneven]
        shard = blocks[rank]
    else:
        placement = place_packed_zigzag(case.starts or (0, case.length), size)
        blocks = [shard] * size
    if case.mask == "causal":
        tiles = tile_causal(rank, schedule.owners, shard, blocks)
    elif case.mask == "full":
        tiles = tile_full(shard, blocks)
    else:
        rows = own_rows(case, rank, size)
        tiles = tile_given(hidden[..., rows, :].to(q.device), placement)
    plan = Circulation(
        schedule,
        rank,
        tiles,
        kernel,
        PointToPoint(lanes) if size > 1 else None,
        shard,
        blocks,
        **_merging(case),
        keep=case.keep,
    )
    return circulate(q, k, v, plan)


def _merging(case: Case) -> dict[str, Any]:
    if not case.fused_merge:
        return {}
    from mindspeed.core.context_parallel.fused_merge import merge_fused_

    return {"merge": merge_fused_, "stats_width": 8}


def _run_ulysses(case: Case, kernel: Any, hidden: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Any:
    from mindspeed.core.context_parallel.block_kernel import Mask
    from mindspeed.core.context_parallel.local import attend_locally
    from mindspeed.core.context_parallel.placement import place_contiguous, place_packed_zigzag
    from mindspeed.core.context_parallel.ulysses import attend_by_heads

    ends = case.starts[1:] or None
    mask = Mask(causal=case.mask == "causal", query_ends=ends, key_ends=ends)
    if case.mask == "given":
        mask = Mask(given=hidden.to(q.device))

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Any:
        if not case.bnsd:
            return attend_locally(q, k, v, kernel=kernel, mask=mask)
        turned = (x.permute(1, 2, 0, 3).contiguous() for x in (q, k, v))
        return attend_locally(*turned, kernel=kernel, mask=mask).permute(2, 0, 1, 3)

    size = dist.get_world_size()
    placement = (
        place_packed_zigzag(case.starts or (0, case.length), size)
        if not case.uneven
        else (place_contiguous(case.uneven))
    )
    group = _groups(tuple(range(size)), 1)[0]
    return attend_by_heads(q, k, v, placement=placement, group=group, attend=attend)


def _run_hybrid(case: Case, kernel: Any, hidden: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Any:
    from mindspeed.core.context_parallel.placement import Placement, place_packed_zigzag
    from mindspeed.core.context_parallel.ulysses import attend_by_heads

    size, u = dist.get_world_size(), case.ulysses
    near = [_groups(tuple(range(i * u, i * u + u)), 1) for i in range(size // u)]
    far = [_groups(tuple(range(i, size, u)), case.lanes) for i in range(u)]
    ring, place = divmod(dist.get_rank(), u)
    whole = place_packed_zigzag(case.starts or (0, case.length), size)
    placement = Placement(whole.ranges[ring * u : ring * u + u])

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return _ring(case, kernel, hidden, q, k, v, rank=ring, size=size // u, lanes=far[place])

    return attend_by_heads(q, k, v, placement=placement, group=near[ring][0], attend=attend)


def _run_kv_allgather(
    case: Case, kernel: Any, hidden: Tensor, q: Tensor, k: Tensor, v: Tensor
) -> Any:
    from mindspeed.core.context_parallel.block_kernel import Mask
    from mindspeed.core.context_parallel.kv_allgather import (
        Call,
        Gathering,
        attend_gathered,
        call_causal,
    )
    from mindspeed.core.context_parallel.placement import place_contiguous, place_packed_zigzag
    from mindspeed.core.context_parallel.shard import DenseShard, PackedShard, Part

    rank, size = dist.get_rank(), dist.get_world_size()
    starts = case.starts or (0, case.length)
    shard: Any = DenseShard(case.length // size)
    if case.starts:
        shard = PackedShard(tuple(end // size for end in case.starts[1:]), q.device)
    if case.mask == "causal":
        calls = call_causal(rank, starts, size, packed=bool(case.starts), device=q.device)
    elif case.mask == "full":
        mask = Mask(query_ends=shard.ends_of(Part.ALL), key_ends=case.starts[1:] or None)
        calls = [Call(Part.ALL, case.length, mask)]
    else:
        mask = Mask(given=hidden[..., own_rows(case, rank, size), :].to(q.device))
        calls = [Call(Part.ALL, case.length, mask)]
    group = _groups(tuple(range(size)), 1)[0]
    placement = place_contiguous(case.uneven) if case.uneven else place_packed_zigzag(starts, size)
    plan = Gathering(placement, group, calls, kernel, shard, keep=case.keep)
    return attend_gathered(q, k, v, plan)


def _run_adaptive(case: Case, kernel: Any, hidden: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Any:
    from mindspeed.core.context_parallel import adaptive, choice, groups, mask_blocks, problem

    size, rank = dist.get_world_size(), dist.get_rank()
    u = case.ulysses if case.algorithm == "hybrid_adaptive" else 1
    near = [_groups(tuple(range(i * u, i * u + u)), 1)[0] for i in range(size // u)]
    far = [_groups(tuple(range(i, size, u)), case.lanes) for i in range(u)]
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
    whole = groups.Groups(_groups(tuple(range(size)), 1)[0], near[rank // u], far[rank % u])
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


def _run_uneven(case: Case, kernel: Any, hidden: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Any:
    """The functions that are offered for it."""
    from mindspeed.core.context_parallel.uneven_ring import attend_uneven_ring
    from mindspeed.core.context_parallel.uneven_ulysses import attend_uneven_ulysses

    options: dict[str, Any] = {
        "lengths": case.uneven,
        "group": _groups(tuple(range(dist.get_world_size())), 1)[0],
        "scale": SCALE,
        "mask": hidden.to(q.device) if case.mask == "given" else None,
    }
    if case.algorithm == "uneven_ring":
        return attend_uneven_ring(q, k, v, **options)
    return attend_uneven_ulysses(q, k, v, causal=case.mask == "causal", **options)
