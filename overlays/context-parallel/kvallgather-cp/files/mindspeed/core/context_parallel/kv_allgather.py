"""Keys and values of all ranks gathered: every rank attends with its rows over all it may see.

Under a causal mask a chunk of queries needs the keys up to its own end, so a rank makes two calls,
one for each of its chunks. Backward, keys and values are gathered again (or were kept), and the
gradients are summed and shared out by one reduce-scatter.

(Llama Team, "The Llama 3 Herd of Models", 2024, section 3.3.2.)

Dims: s rows of the whole sequence, l rows of this rank, b batch, n heads, g key heads, p ranks.
"""

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from mindspeed.core.context_parallel.block_kernel import BlockKernel, Draw, Mask
from mindspeed.core.context_parallel.choice import Choice
from mindspeed.core.context_parallel.exchange import (
    ProcessGroup,
    gather_parts,
    pack,
    reduce_parts,
    unpack,
)
from mindspeed.core.context_parallel.groups import Groups
from mindspeed.core.context_parallel.online_softmax import STATS_WIDTH, Attended
from mindspeed.core.context_parallel.placement import Placement, order_rows, rank_rows
from mindspeed.core.context_parallel.problem import Problem, in_layout
from mindspeed.core.context_parallel.shard import Part, Shard
from torch import Tensor


@dataclass(frozen=True)
class Call:
    """One call of the kernel: some of this rank's queries over some of all keys.

    Attributes:
        queries: which of this rank's rows.
        keys: how many of all keys, from the first on; of packed sequences the rows.
        mask: between them.
    """

    queries: Part
    keys: int | Tensor
    mask: Mask


@dataclass(frozen=True)
class Gathering:
    """What `attend_gathered` needs beside the tensors.

    Attributes:
        placement: of all rows.
        group: all of its ranks must call.
        calls: which together cover every query once.
        kernel: attention of a call.
        queries: this rank's rows.
        keep: "" gathers again for the backward pass, "half" keeps all keys, "full" also all values.
    """

    placement: Placement
    group: ProcessGroup
    calls: Sequence[Call]
    kernel: BlockKernel
    queries: Shard
    keep: str = ""


@functools.lru_cache(maxsize=16)
def call_causal(
    rank: int, starts: tuple[int, ...], num_ranks: int, *, packed: bool, device: torch.device
) -> list[Call]:
    """The two calls of a rank under zigzag, causal (in each packed sequence).

    Args:
        rank: this one.
        starts: cumulative lengths of the sequences with a leading 0; [0, s] if there is one.
        num_ranks: p.
        packed: whether rows are packed.
        device: where rows are indexed.
    """
    calls = []
    for part, chunk in ((Part.FIRST, rank), (Part.LAST, 2 * num_ranks - 1 - rank)):
        lengths = [stop - start for start, stop in itertools.pairwise(starts)]
        seen = [length // (2 * num_ranks) * (chunk + 1) for length in lengths]
        if not packed:
            calls.append(Call(part, seen[0], Mask(causal=True)))
            continue
        own = torch.tensor([length // (2 * num_ranks) for length in lengths]).cumsum(0)
        rows = torch.cat([torch.arange(n) + start for start, n in zip(starts, seen, strict=False)])
        mask = Mask(
            causal=True,
            query_ends=own.tolist(),
            key_ends=torch.tensor(seen).cumsum(0).tolist(),
        )
        calls.append(Call(part, rows.to(device), mask))
    return calls


def attend_gathered(q: Tensor, k: Tensor, v: Tensor, plan: Gathering) -> Tensor:
    """Attention of this rank's queries over all keys. Differentiable.

    Args:
        q: in the layout of `plan.kernel`, this rank's rows.
        k: this rank's keys.
        v: this rank's values.
        plan: what to do.

    Returns:
        The output, in the layout and dtype of q.
    """
    out: Tensor = _Gathered.apply(q, k, v, plan)
    return out


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, plan: Gathering) -> Tensor:
        layout = plan.kernel.layout
        keys, values = _gather([k, v], plan)
        parts: dict[Part, Attended] = {}
        draws: list[Draw] = []
        for call in plan.calls:
            parts[call.queries], draw = plan.kernel.forward(
                plan.queries.take(q, call.queries, layout.axis),
                _take(keys, call.keys, layout.axis),
                _take(values, call.keys, layout.axis),
                call.mask,
            )
            draws.append(draw)
        out = _join([part.out for part in parts.values()], list(parts), plan.queries, layout.axis)
        stats = [x[..., :1].contiguous() for p in parts.values() for x in (p.top, p.total)]
        kept = {"": [], "half": [keys], "full": [keys, values]}[plan.keep]
        ctx.plan, ctx.draws = plan, draws
        ctx.save_for_backward(q, k, v, out, *stats, *kept)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        plan: Gathering = ctx.plan
        axis = plan.kernel.layout.axis
        q, k, v, out, *rest = ctx.saved_tensors
        stats, kept = rest[: 2 * len(plan.calls)], rest[2 * len(plan.calls) :]
        keys, values = [*kept, *_gather([k, v][len(kept) :], plan)]
        d_keys, d_values = torch.zeros_like(keys), torch.zeros_like(values)
        found = []
        for index, call in enumerate(plan.calls):
            top, total = stats[2 * index : 2 * index + 2]
            wide = (*top.shape[:-1], STATS_WIDTH)
            own = plan.queries.take(out, call.queries, axis)
            dq, dk, dv = plan.kernel.backward(
                plan.queries.take(grad, call.queries, axis),
                plan.queries.take(q, call.queries, axis),
                _take(keys, call.keys, axis),
                _take(values, call.keys, axis),
                Attended(own, top.expand(wide), total.expand(wide)),
                call.mask,
                ctx.draws[index],
            )
            found.append(dq)
            _add_(d_keys, call.keys, axis, dk)
            _add_(d_values, call.keys, axis, dv)
        dq = _join(found, [call.queries for call in plan.calls], plan.queries, axis)
        dk, dv = _reduce([d_keys, d_values], [k.shape, v.shape], plan)
        return dq, dk, dv, None


def _gather(tensors: Sequence[Tensor], plan: Gathering) -> list[Tensor]:
    """All rows of each tensor in global order, by one collective."""
    if not tensors:
        return []
    axis = plan.kernel.layout.axis
    shapes = [
        [(*x.shape[:axis], rows, *x.shape[axis + 1 :]) for x in tensors]
        for rows in plan.placement.lengths
    ]
    sizes = [sum(torch.Size(shape).numel() for shape in held) for held in shapes]
    flat = gather_parts(pack(tensors), sizes, plan.group)
    by_rank = [unpack(part, held) for part, held in zip(flat, shapes, strict=True)]
    return [order_rows(parts, plan.placement, axis=axis) for parts in zip(*by_rank, strict=True)]


def _reduce(
    tensors: Sequence[Tensor], shapes: Sequence[torch.Size], plan: Gathering
) -> list[Tensor]:
    """This rank's rows of the sum of all ranks' tensors, by one collective."""
    axis = plan.kernel.layout.axis
    ranked = [rank_rows(x, plan.placement, axis=axis) for x in tensors]
    shares = []
    for held in zip(*ranked, strict=True):
        # Rows that come after the heads do not lie together: put them so, range by range.
        whole = [pieces if axis == 0 else [torch.cat(pieces, axis)] for pieces in held]
        shares.append([piece for pieces in whole for piece in pieces])
    own = plan.placement.lengths[plan.group.rank()]
    width = sum(torch.Size(shape).numel() for shape in shapes) // own
    lengths = [rows * width for rows in plan.placement.lengths]
    return unpack(reduce_parts(shares, lengths, plan.group), shapes)


def _take(x: Tensor, rows: int | Tensor, axis: int) -> Tensor:
    return x.narrow(axis, 0, rows) if isinstance(rows, int) else x.index_select(axis, rows)


def _add_(x: Tensor, rows: int | Tensor, axis: int, value: Tensor) -> None:
    if isinstance(rows, int):
        x.narrow(axis, 0, rows).add_(value)
    else:
        x.index_add_(axis, rows, value)


def _join(found: Sequence[Tensor], parts: Sequence[Part], queries: Shard, axis: int) -> Tensor:
    """One tensor of all rows from those of the parts."""
    if list(parts) == [Part.ALL]:
        return found[0]
    return queries.join(found[0], found[1], axis)


def attend_kv(
    q: Tensor, k: Tensor, v: Tensor, problem: Problem, *, choice: Choice, groups: Groups
) -> Tensor:
    """Attention over gathered keys and values; see `attention.Attention`."""
    group = groups.whole
    rows = problem.cut(choice.size, q.device)
    if problem.kind == "causal":
        calls = call_causal(
            group.rank(), problem.starts, choice.size, packed=problem.packed, device=q.device
        )
    else:
        mask = Mask(given=problem.mask, query_ends=rows.ends_of(Part.ALL), key_ends=problem.ends)
        calls = [Call(Part.ALL, problem.length, mask)]
    plan = Gathering(
        problem.place(choice.size), group, calls, problem.kernel, rows, keep=choice.keep
    )
    return in_layout(q, k, v, problem, lambda q, k, v: attend_gathered(q, k, v, plan))
