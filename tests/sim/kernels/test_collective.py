"""Products fused with collectives, on forked ranks: real torch_npu calls over hccl groups.

Every rank rebuilds the inputs of all ranks from their numbers and computes the expected result
alone, in float64.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from ascend_sim import ranks

PRELOAD = ("ascend_sim:install", "ascend_sim.distributed:install")
HALVES = [torch.float16, torch.bfloat16]
TOLERANCE = {torch.float16: 1e-2, torch.bfloat16: 6e-2}  # sums of 8 rounded halves of size 16


def draw(rank: int, *shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    return torch.randn(*shape, generator=generator).to(dtype)


def group_name() -> str:
    backend: Any = dist.group.WORLD._get_backend(torch.device("npu"))  # type: ignore[union-attr]
    return str(backend.get_hccl_comm_name(dist.get_rank()))


def op(name: str) -> Callable[..., Any]:
    operator: Callable[..., Any] = getattr(torch.ops.npu, name)
    return operator


def close(actual: Tensor, expected: Tensor) -> None:
    bound = TOLERANCE[actual.dtype]
    limit = bound * max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(actual.cpu().double(), expected, rtol=bound, atol=limit)


def check_all_gather_base_mm() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    for dtype in HALVES:
        parts = [draw(r, 3, 256, dtype=dtype) for r in range(world)]
        weight = draw(rank, 5, 256, dtype=dtype, seed=1)
        out, gathered = op("npu_all_gather_base_mm")(
            parts[rank].to("npu"), weight.to("npu").t(), group_name(), world
        )
        assert torch.equal(gathered.cpu(), torch.cat(parts))
        close(out, torch.cat(parts).double() @ weight.double().T)
        _, empty = op("npu_all_gather_base_mm")(
            parts[rank].to("npu"), weight.to("npu").t(), group_name(), world, gather_output=False
        )
        assert empty.numel() == 0


def check_mm_reduce_scatter_and_all_reduce() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    for dtype in HALVES:
        inputs = [draw(r, 2 * world, 256, dtype=dtype) for r in range(world)]
        weights = [draw(r, 256, 3, dtype=dtype, seed=1) for r in range(world)]
        total = torch.zeros(2 * world, 3, dtype=torch.float64)
        for x, weight in zip(inputs, weights, strict=True):
            total += x.double() @ weight.double()
        x, weight = inputs[rank].to("npu"), weights[rank].to("npu")
        scattered = op("npu_mm_reduce_scatter_base")(x, weight, group_name(), world)
        close(scattered, total[2 * rank : 2 * rank + 2])
        close(op("npu_mm_all_reduce_base")(x, weight, group_name()), total)
        bias, extra = draw(0, 3, dtype=dtype, seed=2), draw(rank, 2 * world, 3, dtype=dtype, seed=3)
        moved = total + world * bias.double()
        for r in range(world):
            moved += draw(r, 2 * world, 3, dtype=dtype, seed=3).double()
        out = op("npu_mm_all_reduce_base")(
            x[None], weight, group_name(), bias=bias.to("npu"), x3=extra[None].to("npu")
        )
        close(out[0], moved)


def check_all_to_all_before_and_after_the_product() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    for dtype in HALVES:
        bias_dtype = torch.float16 if dtype == torch.float16 else torch.float32
        inputs = [draw(r, 3 * world, 5, dtype=dtype) for r in range(world)]
        weight = draw(rank, 5 * world, 4, dtype=dtype, seed=1)
        bias = draw(rank, 4, dtype=bias_dtype, seed=2)
        out, exchanged = op("npu_all_to_all_matmul")(
            inputs[rank].to("npu"), weight.to("npu"), group_name(), world, bias=bias.to("npu")
        )
        mine = torch.cat([x[3 * rank : 3 * rank + 3] for x in inputs], 1)
        assert torch.equal(exchanged.cpu(), mine)
        close(out, mine.double() @ weight.double() + bias.double())

        weight, bias = draw(0, 5, 4, dtype=dtype, seed=3), draw(0, 4, dtype=bias_dtype, seed=4)
        out = op("npu_matmul_all_to_all")(
            inputs[rank].to("npu"), weight.to("npu"), group_name(), world, bias=bias.to("npu")
        )
        width = 4 // world
        columns = slice(width * rank, width * (rank + 1))
        rows = [x.double() @ weight.double() + bias.double() for x in inputs]
        close(out, torch.cat([product[:, columns] for product in rows]))


def check_expert_exchange_before_and_after_the_grouped_product() -> None:
    rank, world, experts, dtype = dist.get_rank(), dist.get_world_size(), 2, torch.bfloat16
    generator = torch.Generator().manual_seed(7)
    # counts[s, d, e]: rows from rank s to expert e of rank d; some are zero.
    counts = torch.randint(0, 3, (world, world, experts), generator=generator)
    send, receive = counts[rank].flatten().tolist(), counts[:, rank].flatten().tolist()
    tokens = [draw(r, int(counts[r].sum()), 4, dtype=dtype) for r in range(world)]
    weight = draw(rank, experts, 4, 3, dtype=dtype, seed=1)

    blocks = {}
    for source in range(world):
        parts = torch.split(tokens[source], counts[source].flatten().tolist())
        for place, part in enumerate(parts):
            blocks[source, place // experts, place % experts] = part
    sorted_rows = [blocks[s, rank, e] for e in range(experts) for s in range(world)]
    expected = [
        blocks[s, rank, e].double() @ weight[e].double()
        for e in range(experts)
        for s in range(world)
    ]
    shared_x, shared_w = (
        draw(rank, 3, 4, dtype=dtype, seed=2),
        draw(rank, 5, 4, dtype=dtype, seed=3),
    )
    out, shared, permuted = op("npu_alltoallv_gmm")(
        tokens[rank].to("npu"),
        weight.transpose(1, 2).contiguous().to("npu"),
        group_name(),
        world,
        send,
        receive,
        mm_x=shared_x.to("npu"),
        mm_weight=shared_w.to("npu"),
        trans_gmm_weight=True,
        trans_mm_weight=True,
        permute_out_flag=True,
    )
    assert torch.equal(permuted.cpu(), torch.cat(sorted_rows))
    close(out, torch.cat(expected))
    close(shared, shared_x.double() @ shared_w.double().T)

    # Back again, with a weight that leaves the rows as they are: every token returns to its place.
    identity = torch.eye(4).to(dtype).expand(experts, 4, 4).contiguous()
    back, nothing = op("npu_gmm_alltoallv")(
        permuted, identity.to("npu"), group_name(), world, receive, send
    )
    assert nothing is None
    assert torch.equal(back.cpu(), tokens[rank])


def check_a_broken_rule_is_named_on_every_rank() -> None:
    world, name = dist.get_world_size(), group_name()
    x, weight = torch.ones(4, 256).half().to("npu"), torch.ones(256, 3).half().to("npu")
    ones = torch.ones(3).half().to("npu")
    gather, scatter = op("npu_all_gather_base_mm"), op("npu_mm_reduce_scatter_base")
    exchange = op("npu_alltoallv_gmm")
    cases: list[tuple[Callable[[], Any], str]] = [
        (lambda: gather(x, weight, name, 3), "world_size must be in"),
        (lambda: gather(x, weight, name, 4), "world_size 4 is not the group's, 2"),
        (lambda: gather(x[:, :8].contiguous(), weight[:8], name, world), r"k must be in \[256"),
        (lambda: gather(x, weight, name, world, bias=ones), "other than zero"),
        (lambda: gather(x, weight, name, world, gather_index=1), "gather_index must be 0"),
        (lambda: gather(x, weight.float(), name, world), "one dtype"),
        (lambda: scatter(x[:3], weight, name, world), "world_size must divide"),
        (lambda: scatter(x, weight, name, world, reduce_op="max"), "reduce_op must be"),
        (lambda: op("npu_mm_all_reduce_base")(x, weight, name, comm_turn=1), "comm_turn must"),
        (lambda: op("npu_all_to_all_matmul")(x, weight, name, world), "world_size . h rows"),
        (lambda: op("npu_matmul_all_to_all")(x, weight, name, world), "divide the columns"),
        (lambda: exchange(x, weight[None], name, world, [4, 0], [4, 0]), "ep_world_size must be"),
    ]
    for call, rule in cases:
        with pytest.raises(RuntimeError, match=rule):
            call()


@pytest.mark.parametrize(
    ("world_size", "check"),
    [
        (2, check_all_gather_base_mm),
        (4, check_mm_reduce_scatter_and_all_reduce),
        (2, check_all_to_all_before_and_after_the_product),
        (8, check_expert_exchange_before_and_after_the_grouped_product),
        (2, check_a_broken_rule_is_named_on_every_rank),
    ],
)
def test_on_ranks(world_size: int, check: Callable[[], None]) -> None:
    server = ranks.server(preload=PRELOAD)
    target = ranks.Target.of(check, rewrite_asserts=True)
    server.run(target, world_size=world_size, backend="hccl")
