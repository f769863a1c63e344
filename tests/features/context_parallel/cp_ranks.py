"""What the tests of context-parallel attention run on ranks."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from features.context_parallel import dense
from features.context_parallel.cp_adaptive import run_adaptive
from features.context_parallel.cp_case import SCALE, Case, make_groups, make_inputs, own_rows


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


def _run_dense(
    whole: list[Tensor], grad: Tensor, hidden: Tensor, dropped: Tensor | None
) -> list[Tensor]:
    leaves = [x.clone().requires_grad_() for x in whole]
    out = dense.attend(*leaves, scale=SCALE, hidden=hidden, dropped=dropped)
    out.backward(grad)
    return [out.detach(), *(x.grad for x in leaves if x.grad is not None)]


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
        "adaptive": run_adaptive,
        "hybrid_adaptive": run_adaptive,
        "uneven_ring": _run_uneven,
        "uneven_ulysses": _run_uneven,
    }[case.algorithm]
    rows_first = case.algorithm in ("ulysses", "hybrid", "adaptive", "hybrid_adaptive")
    if case.bnsd and not rows_first:
        out = run(case, kernel, hidden, *(x.permute(1, 2, 0, 3).contiguous() for x in tensors))
        return out.permute(2, 0, 1, 3)
    return run(case, kernel, hidden, *tensors)


def _run_ring(case: Case, kernel: Any, hidden: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Any:
    size = dist.get_world_size()
    lanes = make_groups(tuple(range(size)), case.lanes)
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
    group = make_groups(tuple(range(size)), 1)[0]
    return attend_by_heads(q, k, v, placement=placement, group=group, attend=attend)


def _run_hybrid(case: Case, kernel: Any, hidden: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Any:
    from mindspeed.core.context_parallel.placement import Placement, place_packed_zigzag
    from mindspeed.core.context_parallel.ulysses import attend_by_heads

    size, u = dist.get_world_size(), case.ulysses
    near = [make_groups(tuple(range(i * u, i * u + u)), 1) for i in range(size // u)]
    far = [make_groups(tuple(range(i, size, u)), case.lanes) for i in range(u)]
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
    group = make_groups(tuple(range(size)), 1)[0]
    placement = place_contiguous(case.uneven) if case.uneven else place_packed_zigzag(starts, size)
    plan = Gathering(placement, group, calls, kernel, shard, keep=case.keep)
    return attend_gathered(q, k, v, plan)


def _run_uneven(case: Case, kernel: Any, hidden: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Any:
    """The functions that are offered for it."""
    from mindspeed.core.context_parallel.uneven_ring import attend_uneven_ring
    from mindspeed.core.context_parallel.uneven_ulysses import attend_uneven_ulysses

    options: dict[str, Any] = {
        "lengths": case.uneven,
        "group": make_groups(tuple(range(dist.get_world_size())), 1)[0],
        "scale": SCALE,
        "mask": hidden.to(q.device) if case.mask == "given" else None,
    }
    if case.algorithm == "uneven_ring":
        return attend_uneven_ring(q, k, v, **options)
    return attend_uneven_ulysses(q, k, v, causal=case.mask == "causal", **options)
