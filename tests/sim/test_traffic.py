"""The communication log: bytes and calls by group, order of launches, forgotten handles."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ascend_sim import comm_log

c10d: Any = dist.distributed_c10d


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape, device=f"npu:{dist.get_rank()}")


def counted(collective: str, group: str = "0") -> tuple[int, int, int, int]:
    """(calls, blocking calls, payload bytes, sent bytes) of this rank."""
    for line in comm_log.traffic():
        if (line.collective, line.group) == (collective, group):
            return line.calls, line.blocking_calls, line.payload_bytes, line.sent_bytes
    return 0, 0, 0, 0


@pytest.mark.ranks(4)
def test_bytes_of_every_collective_on_four_ranks() -> None:
    rank = dist.get_rank()
    dist.all_reduce(ones(4))  # 16 bytes: 2 * 16 * 3/4
    assert counted("all_reduce") == (1, 1, 16, 24)
    dist.all_gather_single(ones(16), ones(4))
    assert counted("all_gather") == (1, 1, 16, 48)
    dist.reduce_scatter_single(ones(4), ones(16))
    assert counted("reduce_scatter") == (1, 1, 64, 48)
    dist.all_to_all_single(ones(8), ones(8))
    assert counted("all_to_all") == (1, 1, 32, 24)
    dist.broadcast(ones(4), 2)
    assert counted("broadcast") == (1, 1, 16, 16 if rank == 2 else 0)
    dist.reduce(ones(4), 1)
    assert counted("reduce") == (1, 1, 16, 0 if rank == 1 else 16)
    dist.scatter(ones(4), [ones(4)] * 4 if rank == 0 else None, 0)
    assert counted("scatter") == ((1, 1, 64, 48) if rank == 0 else (1, 1, 0, 0))
    dist.barrier()
    assert counted("barrier") == (1, 1, 0, 0)


@pytest.mark.ranks(2)
def test_sends_and_half_precision_count_their_bytes() -> None:
    if dist.get_rank() == 0:
        dist.send(ones(6).bfloat16(), 1)
        assert counted("send")[2:] == (12, 12)
        assert counted("recv") == (0, 0, 0, 0)
    else:
        dist.recv(ones(6).bfloat16(), 0)
        assert counted("recv")[2:] == (12, 0)


@pytest.mark.ranks(2)
def test_coalesced_collectives_are_one_call() -> None:
    with c10d._coalescing_manager():
        for _ in range(3):
            dist.all_reduce(ones(4))
    assert counted("all_reduce") == (1, 1, 48, 48)


@pytest.mark.ranks(4)
def test_groups_are_counted_apart_with_their_ranks() -> None:
    import ascend_sim

    pairs = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    mine = pairs[dist.get_rank() % 2]
    dist.all_reduce(ones(4), group=mine)
    dist.all_reduce(ones(4))
    dist.all_reduce(ones(4))
    by_ranks = {line.ranks: line.calls for line in ascend_sim.traffic()}
    assert by_ranks == {(0, 1, 2, 3): 2, (0, 2) if dist.get_rank() % 2 == 0 else (1, 3): 1}

    comm_log.reset_traffic()
    assert ascend_sim.traffic() == []


@pytest.mark.ranks(2)
def test_launches_waits_and_compute_are_logged_in_order() -> None:
    x, w = ones(2, 2), ones(2, 2).requires_grad_()
    with comm_log.record_launches() as log:
        handle = dist.all_reduce(x, async_op=True)
        y = w @ w
        comm_log.mark("hidden")
        assert handle is not None
        handle.wait()
        dist.broadcast(x, 0)
        y.sum().backward()
    handle.wait()

    assert [(e.kind, e.name) for e in log[:6]] == [
        ("launch", "all_reduce"),
        ("compute", "matmul"),
        ("mark", "hidden"),
        ("wait", "all_reduce"),
        ("launch", "broadcast"),
        ("wait", "broadcast"),
    ]
    assert log[0].launch == log[3].launch != log[4].launch
    in_backward = {e.name for e in log[6:] if e.kind == "compute"}  # another thread
    assert in_backward & {"mm", "matmul", "matmul_backward"}
    assert len([e for e in log if e.kind == "wait"]) == 2


@pytest.mark.ranks(2)
def test_compute_is_left_out_on_request() -> None:
    with comm_log.record_launches(compute=False) as log:
        dist.all_reduce(ones(2) + 1)
    assert [e.kind for e in log] == ["launch", "wait"]


@pytest.mark.ranks(2)
def test_a_handle_nobody_waits_for_is_reported_with_its_place() -> None:
    comm_log.report_unwaited_at_exit()
    dist.all_reduce(ones(2))
    lost = dist.all_reduce(ones(2), async_op=True)
    seen = dist.all_reduce(ones(2), async_op=True)
    (peer,) = {0, 1} - {dist.get_rank()}
    sent = dist.isend(ones(2), peer)
    received = ones(2)
    dist.recv(received, peer)
    assert seen is not None
    seen.wait()

    first, second = comm_log.unwaited()
    assert first.startswith("all_reduce in group '0' was never waited for, launched at")
    assert "lost = dist.all_reduce" in first
    assert second.startswith("send in group '0' was never waited for")
    assert lost is not None
    lost.wait()
    assert sent is not None
    sent.wait()
    assert comm_log.unwaited() == []


FORGETFUL = """
import ascend_sim
ascend_sim.install()
import torch, torch.distributed as dist
dist.init_process_group("hccl", rank=0, world_size=1, store=dist.HashStore())
handle = dist.all_reduce(torch.ones(2, device="npu"), async_op=True)
dist.barrier()
"""


def test_a_process_reports_at_exit_what_it_forgot(tmp_path: Path) -> None:
    script = tmp_path / "forgetful.py"
    script.write_text(FORGETFUL)
    tools = str(Path(comm_log.__file__).parents[1])

    ended = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "ASCEND_SIM_REPORT_UNWAITED": "1", "PYTHONPATH": tools},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert ended.returncode == 0, ended.stderr
    (report,) = [line for line in ended.stderr.splitlines() if line.startswith("ascend_sim:")]
    assert "all_reduce in group '0' was never waited for" in report
    assert "handle = dist.all_reduce" in ended.stderr


@pytest.mark.ranks(2)
def test_waiting_for_the_tensor_of_a_functional_collective_counts_as_waiting() -> None:
    import torch.distributed._functional_collectives as functional

    with comm_log.record_launches(compute=False) as log:
        total = functional.all_reduce(ones(2), "sum", c10d.GroupMember.WORLD)
        assert len(comm_log.unwaited()) == 1
        total = functional.wait_tensor(total)
    assert total.tolist() == [2.0, 2.0]
    assert comm_log.unwaited() == []
    assert [e.kind for e in log] == ["launch", "wait"]


@pytest.mark.ranks(2)
def test_the_reducer_of_torch_ddp_counts_and_is_not_reported() -> None:
    rank = dist.get_rank()
    model = torch.nn.Linear(4, 4, bias=False).to(f"npu:{rank}")
    parallel = torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank])
    comm_log.reset_traffic()
    parallel(ones(2, 4)).sum().backward()
    assert counted("all_reduce")[2:] == (64, 64)
    assert comm_log.unwaited() == []
