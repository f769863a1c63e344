"""What the tests of `ranks` run on ranks: other processes find only module-level functions."""

import os
import signal
import time

import torch
import torch.distributed as dist


def sum_of_ranks(start: float, *, step: float = 0.0) -> torch.Tensor:
    """All-reduce of `start + rank`, plus `step`."""
    total = torch.tensor([start + dist.get_rank()])
    dist.all_reduce(total)
    return total + step


def environment() -> dict[str, str]:
    """What torchrun would have set."""
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
    return {name: os.environ[name] for name in names}


def join_twice() -> list[float]:
    """Initialise, reduce in the world and in a pair without rank 0, destroy; twice."""
    sums = []
    for _ in range(2):
        dist.init_process_group("gloo")
        pair = dist.new_group([1, 2])
        value = torch.ones(1)
        dist.all_reduce(value)
        if dist.get_rank() > 0:
            dist.all_reduce(value, group=pair)
        sums.append(value.item())
        dist.barrier()
        dist.destroy_process_group()
    return sums


def fail_on_rank_one() -> None:
    """Rank 1 raises, the others wait for it."""
    if dist.get_rank() == 1:
        print("about to fail")
        raise ValueError("rank one gives up")
    dist.barrier()


def hang_on_rank_one() -> None:
    """Rank 1 never comes to the barrier."""
    if dist.get_rank() == 1:
        signal.pause()
    dist.barrier()


def die_on_rank_one() -> None:
    """Rank 1 is killed by a signal that Python does not see."""
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
        time.sleep(5)
    dist.barrier()
