"""Collectives on device tensors, on forked ranks: values, types, handles, groups, options."""

import datetime
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

Op = dist.ReduceOp
c10d: Any = dist.distributed_c10d


def device() -> torch.device:
    return torch.device("npu", dist.get_rank())


def of_rank(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor on this rank's device filled with rank + 1."""
    return torch.full(shape, dist.get_rank() + 1, dtype=dtype, device=device())


def check(tensor: torch.Tensor, expected: Any) -> None:
    assert tensor.device == device()
    torch.testing.assert_close(tensor.cpu(), torch.as_tensor(expected).to(tensor.dtype))


@pytest.mark.ranks(3)
def test_all_reduce_with_every_operation() -> None:
    for op, expected in ((Op.SUM, 6), (Op.AVG, 2), (Op.PRODUCT, 6), (Op.MIN, 1), (Op.MAX, 3)):
        value = of_rank(2, 3)
        dist.all_reduce(value, op=op)
        check(value, torch.full((2, 3), float(expected)))


@pytest.mark.ranks(2)
def test_all_reduce_in_every_type() -> None:
    numbers = [torch.float32, torch.float16, torch.bfloat16]
    for dtype in [*numbers, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]:
        value = of_rank(3, dtype=dtype)
        dist.all_reduce(value)
        check(value, [3, 3, 3])
    flag = torch.tensor([dist.get_rank() == 0, False], device=device())
    dist.all_reduce(flag, op=Op.MAX)
    check(flag, [True, False])
    wave = of_rank(2, dtype=torch.complex64) * 1j
    dist.all_reduce(wave)
    check(wave, [3j, 3j])


@pytest.mark.ranks(2)
def test_average_divides_in_the_tensors_own_type() -> None:
    value = torch.tensor([257.0 + 2 * dist.get_rank()], dtype=torch.bfloat16, device=device())
    expected = (torch.tensor([256.0]).bfloat16() + torch.tensor([260.0]).bfloat16()) / 2
    dist.all_reduce(value, op=Op.AVG)
    check(value, expected)
    count = of_rank(2, dtype=torch.int64)
    dist.all_reduce(count, op=Op.AVG)
    check(count, [1, 1])


@pytest.mark.ranks(2)
def test_transposed_tensors_are_reduced_and_ones_with_holes_refused() -> None:
    value = torch.arange(6.0, device=device()).view(2, 3).t()
    dist.all_reduce(value)
    check(value, 2 * torch.arange(6.0).view(2, 3).t())
    with pytest.raises(ValueError, match="non-overlapping and dense"):
        dist.all_reduce(torch.zeros(4, 4, device=device())[:, ::2])


@pytest.mark.ranks(2)
def test_reducing_a_type_that_hccl_does_not_reduce_is_refused() -> None:
    for dtype in (torch.float8_e5m2, torch.float64, torch.complex128):
        value = torch.zeros(2, dtype=dtype, device=device())
        refused = f"Unsupported data type {dtype}|float64"  # complex128 as pairs of float64
        with pytest.raises(RuntimeError, match=refused):
            dist.all_reduce(value)
        with pytest.raises(RuntimeError, match=refused):
            dist.reduce(value, 0)
        dist.broadcast(value, 0)  # bytes of any type are moved


@pytest.mark.ranks(3)
def test_gathers_and_scatters_of_lists() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    parts = [torch.empty(2, device=device()) for _ in range(size)]
    dist.all_gather(parts, of_rank(2))
    check(torch.stack(parts), [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])

    part = torch.empty(2, device=device())
    dist.reduce_scatter(part, [of_rank(2) * (i + 1) for i in range(size)])
    check(part, [6.0 * (rank + 1)] * 2)

    sources = [torch.full((2,), float(i), device=device()) for i in range(size)]
    dist.scatter(part, sources if rank == 1 else None, src=1)
    check(part, [float(rank)] * 2)


@pytest.mark.ranks(3)
def test_list_all_gather_takes_shards_of_different_sizes() -> None:
    parts = [torch.empty(n, device=device()) for n in (1, 2, 3)]
    dist.all_gather(parts, of_rank(dist.get_rank() + 1))
    check(torch.cat(parts), [1.0, 2, 2, 3, 3, 3])


@pytest.mark.ranks(2)
def test_gather_and_reduce_on_a_root() -> None:
    rank = dist.get_rank()
    parts = [torch.empty(2, device=device()) for _ in range(2)] if rank == 1 else None
    dist.gather(of_rank(2), parts, dst=1)
    if parts is not None:
        check(torch.stack(parts), [[1.0, 1.0], [2.0, 2.0]])

    value = of_rank(2)
    dist.reduce(value, dst=0)
    check(value, [3.0, 3.0] if rank == 0 else [2.0, 2.0])
    value = of_rank(2)
    dist.reduce(value, dst=1, op=Op.AVG)
    check(value, [1.5, 1.5] if rank == 1 else [1.0, 1.0])


@pytest.mark.ranks(2)
def test_single_tensor_forms_under_old_and_new_names() -> None:
    rank = dist.get_rank()
    for gather in (dist.all_gather_into_tensor, dist.all_gather_single):
        for dtype in (torch.float32, torch.bfloat16, torch.bool, torch.float8_e5m2):
            whole = torch.empty(4, 3, device=device()).to(dtype)
            gather(whole, of_rank(2, 3).to(dtype))
            column = torch.tensor([[1.0], [1], [2], [2]]).to(dtype).float()
            check(whole.float(), column.expand(4, 3))
    for scatter in (dist.reduce_scatter_tensor, dist.reduce_scatter_single):
        part = torch.empty(2, device=device())
        scatter(part, torch.arange(4.0, device=device()), op=Op.AVG)
        check(part, torch.arange(4.0)[2 * rank : 2 * rank + 2])


@pytest.mark.ranks(2)
def test_all_gather_in_place_of_its_own_output() -> None:
    whole = torch.zeros(4, device=device())
    mine = whole.chunk(2)[dist.get_rank()]
    mine.copy_(of_rank(2))
    dist.all_gather_single(whole, mine)
    check(whole, [1.0, 1.0, 2.0, 2.0])


@pytest.mark.ranks(3)
def test_all_to_all_even_uneven_and_in_lists() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    source = torch.arange(float(size), device=device()) + 10 * rank
    landing = torch.empty(size, device=device())
    dist.all_to_all_single(landing, source)
    check(landing, [10.0 * peer + rank for peer in range(size)])

    send = [i + 1 for i in range(size)]
    rows = torch.cat([torch.full((n, 2), 10.0 * rank + i) for i, n in enumerate(send)])
    received = torch.empty(size * (rank + 1), 2, device=device())
    dist.all_to_all_single(received, rows.to(device()), [rank + 1] * size, send)
    check(received[:, 0], torch.arange(float(size)).repeat_interleave(rank + 1) * 10 + rank)

    outputs = [torch.empty(rank + 1, device=device()) for _ in range(size)]
    dist.all_to_all(outputs, [of_rank(i + 1) for i in range(size)])
    check(torch.cat(outputs), torch.arange(1.0, size + 1).repeat_interleave(rank + 1))


@pytest.mark.ranks(2)
def test_all_to_all_may_send_nothing() -> None:
    rank = dist.get_rank()
    landing = torch.empty(0 if rank == 0 else 3, 2, device=device())
    source = of_rank(3, 2) if rank == 0 else torch.empty(0, 2, device=device())
    splits = ([0, 0], [0, 3]) if rank == 0 else ([3, 0], [0, 0])
    dist.all_to_all_single(landing, source, *splits)
    check(landing, torch.ones_like(landing, device="cpu"))


@pytest.mark.ranks(2)
def test_wrong_sizes_are_refused_before_anything_is_sent() -> None:
    with pytest.raises(ValueError, match="does not divide equally"):
        dist.all_to_all_single(torch.empty(3, device=device()), torch.empty(3, device=device()))
    with pytest.raises(ValueError, match="world_size times input tensor size"):
        dist.all_gather_single(torch.empty(3, device=device()), torch.empty(2, device=device()))


@pytest.mark.ranks(2)
def test_broadcast_objects_and_barrier() -> None:
    value = of_rank(2)
    dist.broadcast(value, src=1)
    check(value, [2.0, 2.0])
    said: list[Any] = [None, None]
    dist.all_gather_object(said, {"rank": dist.get_rank()})
    assert said == [{"rank": 0}, {"rank": 1}]
    told: list[Any] = [("from", 0) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(told, src=0)
    assert told == [("from", 0)]
    dist.barrier()
    dist.barrier(device_ids=[dist.get_rank()])


@pytest.mark.ranks(3)
def test_point_to_point_alone_batched_and_from_any_source() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    following, previous = (rank + 1) % size, (rank - 1) % size
    received = torch.empty(2, device=device())
    batch = [
        dist.P2POp(dist.isend, of_rank(2), following),
        dist.P2POp(dist.irecv, received, previous),
    ]
    for handle in dist.batch_isend_irecv(batch):
        handle.wait()
    check(received, [previous + 1.0] * 2)

    if rank == 0:
        received.zero_()
        assert dist.recv(received, src=None) == 2
        check(received, [3.0, 3.0])
    elif rank == 2:
        dist.send(of_rank(2), 0)


@pytest.mark.ranks(4)
def test_the_first_call_of_a_group_may_be_a_send_between_two_of_its_ranks() -> None:
    group = dist.new_group([0, 1, 2])
    if dist.get_rank() == 0:
        dist.send(of_rank(1), 1, group=group)
    elif dist.get_rank() == 1:
        value = torch.empty(1, device=device())
        dist.recv(value, 0, group=group)
        check(value, [1.0])


@pytest.mark.ranks(2)
def test_handles_are_done_after_wait_and_carry_futures() -> None:
    value = of_rank(4)
    handle = dist.all_reduce(value, async_op=True)
    assert handle is not None
    handle.wait()
    assert handle.is_completed()
    check(value, [3.0] * 4)
    handle.wait()  # as often as one likes
    check(value, [3.0] * 4)

    handle = dist.all_reduce(value, op=Op.AVG, async_op=True)
    assert handle is not None
    (result,) = handle.get_future().wait()
    assert result.data_ptr() == value.data_ptr()
    check(value, [3.0] * 4)


@pytest.mark.ranks(2)
def test_a_collective_that_fails_raises_however_it_is_waited_for() -> None:
    group = dist.new_group(timeout=datetime.timedelta(seconds=1))
    value, double = of_rank(4), torch.empty(8, device=device())
    dist.all_reduce(value, group=group)
    calls: list[Callable[[], Any]] = [
        lambda: dist.all_reduce(value, group=group),
        lambda: dist.all_reduce(value, group=group, async_op=True).wait(),
        lambda: functional.wait_tensor(functional.all_reduce(value, "sum", group)),
        lambda: dist.all_gather_into_tensor(double, value, group=group),
        lambda: dist.all_to_all_single(value.clone(), value, group=group),
        lambda: dist.broadcast(value, 1, group=group),
        lambda: dist.barrier(group=group),
    ]
    for call in calls if dist.get_rank() == 0 else ():  # rank 1 never comes
        with pytest.raises(RuntimeError, match=r"Timed out|timeout|closed|reset"):
            call()
    dist.barrier()


@pytest.mark.ranks(2)
def test_calls_launched_together_may_be_waited_for_in_any_order() -> None:
    values = [of_rank(8) * (i + 1) for i in range(6)]
    handles = [dist.all_reduce(value, async_op=True) for value in values]
    for handle in reversed(handles):
        assert handle is not None
        handle.wait()
    for i, value in enumerate(values):
        check(value, [3.0 * (i + 1)] * 8)


@pytest.mark.ranks(2)
def test_coalesced_collectives() -> None:
    values = [of_rank(2), of_rank(3)]
    with c10d._coalescing_manager() as manager:
        for value in values:
            dist.all_reduce(value)
    check(torch.cat(values), [3.0] * 5)

    wholes = [torch.empty(2, device=device()), torch.empty(4, device=device())]
    with c10d._coalescing_manager(async_ops=True) as manager:
        for whole in wholes:
            dist.all_gather_single(whole, of_rank(whole.numel() // 2))
    manager.wait()
    check(torch.cat(wholes), [1.0, 2, 1, 1, 2, 2])

    parts = [torch.empty(1, device=device()), torch.empty(2, device=device())]
    with c10d._coalescing_manager():
        for part in parts:
            dist.reduce_scatter_single(part, of_rank(2 * part.numel()))
    check(torch.cat(parts), [3.0] * 3)


@pytest.mark.ranks(4)
def test_subgroups_meshes_and_functional_collectives() -> None:
    from torch.distributed.device_mesh import init_device_mesh

    rank = dist.get_rank()
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = pairs[rank // 2]
    assert dist.get_backend(mine) == "hccl"
    value = of_rank(1)
    dist.all_reduce(value, group=mine)
    check(value, [3.0 if rank < 2 else 7.0])

    mesh = init_device_mesh("npu", (2, 2), mesh_dim_names=("dp", "tp"))
    columns = functional.all_gather_tensor(of_rank(1), 0, mesh["tp"])
    check(columns + 0, [1.0, 2.0] if rank < 2 else [3.0, 4.0])
    summed = functional.all_reduce(of_rank(1), "sum", mesh["dp"])
    check(summed + 0, [4.0 + 2 * (rank % 2)])
    part = functional.reduce_scatter_tensor(of_rank(2), "avg", 0, mesh["tp"])
    check(part + 0, [1.5 if rank < 2 else 3.5])


@pytest.mark.ranks(2, backend=None)
def test_options_backends_by_device_and_joining_again() -> None:
    import torch_npu

    torch.get_device_module("npu").set_device(int(os.environ["RANK"]))
    options = torch_npu._C._distributed_c10d.ProcessGroupHCCL.Options()
    options.hccl_config = {"hccl_buffer_size": 200}
    limit = datetime.timedelta(seconds=40)
    dist.init_process_group("hccl", pg_options=options, timeout=limit)
    group = dist.group.WORLD
    assert group is not None
    backend: Any = group._get_backend(torch.device("npu"))
    assert backend.options.hccl_config == {"hccl_buffer_size": 200}
    assert backend.options._timeout == limit
    plain: Any = dist.new_group([0, 1])
    assert plain._get_backend(torch.device("npu")).options.global_ranks_in_group == [0, 1]
    dist.all_reduce(of_rank(1))
    dist.destroy_process_group()

    dist.init_process_group("cpu:gloo,npu:hccl", timeout=limit)
    value, host = of_rank(1), torch.ones(1)
    dist.all_reduce(value)
    dist.all_reduce(host)
    check(value, [3.0])
    assert host.item() == 2.0
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.ranks(2, backend=None)
def test_scripts_written_for_nccl_run() -> None:
    # torch's broadcast asks "cuda" tensors for their capability; torch_npu has none unless told.
    os.environ["TORCH_NPU_DEVICE_CAPABILITY"] = "8.0"
    from torch_npu.contrib import transfer_to_npu  # noqa: F401

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    assert dist.is_nccl_available()
    value = torch.ones(2).cuda()
    dist.all_reduce(value)
    check(value, [2.0, 2.0])
    other = dist.new_group([0, 1], backend="nccl")
    dist.broadcast(value, 0, group=other)
    dist.destroy_process_group()


@pytest.mark.ranks(4)
def test_communicator_names_find_their_groups() -> None:
    from ascend_sim import distributed

    rank = dist.get_rank()
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine: Any = pairs[rank // 2]
    name = mine._get_backend(torch.device("npu")).get_hccl_comm_name(dist.get_rank(mine))
    assert distributed.group_by_comm_name(name) is mine
    names: list[Any] = [None] * 4
    dist.all_gather_object(names, name)
    assert names[0] == names[1] != names[2] == names[3]

    value = torch.tensor([float(rank)])
    distributed.cpu_backend(name).allreduce([value]).wait()
    assert value.item() == (1.0 if rank < 2 else 5.0)
    with pytest.raises(ValueError, match="no hccl group is named"):
        distributed.group_by_comm_name("nothing")


@pytest.mark.ranks(2)
def test_uneven_forms_of_torch_npu() -> None:
    from torch_npu.distributed import distributed_c10d as npu_c10d

    rank = dist.get_rank()
    whole = torch.empty(3, 2, device=device())
    npu_c10d._all_gather_into_tensor_uneven(whole, of_rank(rank + 1, 2), [1, 2])
    check(whole[:, 0], [1.0, 2.0, 2.0])
    part = torch.empty(rank + 1, 2, device=device())
    npu_c10d._reduce_scatter_tensor_uneven(part, of_rank(3, 2), [1, 2])
    check(part, torch.full((rank + 1, 2), 3.0))
    landing = torch.empty(2 + rank, device=device())
    source = of_rank(3) if rank == 0 else of_rank(2)
    npu_c10d._all_to_all_vc(landing, source, [[1, 2], [1, 1]])
    check(landing, [1.0, 2.0] if rank == 0 else [1.0, 1.0, 2.0])


def two_layers() -> torch.nn.Module:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
    return model.to(device())


@pytest.mark.ranks(2)
def test_torch_ddp_averages_gradients() -> None:
    rank = dist.get_rank()
    dense, wrapped = two_layers(), two_layers()
    parallel = torch.nn.parallel.DistributedDataParallel(wrapped, device_ids=[rank])
    batch = torch.randn(8, 4, generator=torch.Generator().manual_seed(1)).to(device())
    for _ in range(2):
        parallel(batch[4 * rank : 4 * rank + 4]).square().mean().backward()
        dense(batch).square().mean().backward()
    for one, other in zip(wrapped.parameters(), dense.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


@pytest.mark.ranks(2, backend=None)
def test_groups_wrapped_for_debugging_work() -> None:
    c10d_c: Any = torch._C._distributed_c10d
    c10d_c.set_debug_level(c10d_c.DebugLevel.DETAIL)
    dist.init_process_group("hccl", timeout=datetime.timedelta(seconds=40))
    value = of_rank(2)
    dist.all_reduce(value)
    check(value, [3.0, 3.0])
    whole = torch.empty(2, device=device())
    dist.all_gather_single(whole, of_rank(1))
    check(whole, [1.0, 2.0])


@pytest.mark.ranks(1, backend=None)
def test_the_fake_backend_takes_device_tensors() -> None:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("npu:fake", rank=0, world_size=64, store=FakeStore())
    value = torch.ones(2, device="npu:0")
    dist.all_reduce(value)
    whole = torch.zeros(128, device="npu:0")
    dist.all_gather_single(whole, value)
    dist.barrier()
    assert value.tolist() == [1.0, 1.0]


@pytest.mark.ranks(2)
def test_a_group_of_one_needs_no_peer() -> None:
    alone = [dist.new_group([0]), dist.new_group([1])][dist.get_rank()]
    value = of_rank(2)
    dist.all_reduce(value, op=Op.AVG, group=alone)
    whole = torch.empty(2, device=device())
    dist.all_gather_single(whole, value, group=alone)
    check(whole, [dist.get_rank() + 1.0] * 2)
