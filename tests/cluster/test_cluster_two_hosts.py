"""Two hosts with addresses of their own: the check before a run, also where a cable is cut."""

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cluster.two_hosts import ADDRESSES, NEEDS_HOSTS, Running, TwoHosts, open_hosts

pytestmark = NEEDS_HOSTS


def start_ranks(
    hosts: TwoHosts, host: int, python: Path, *words: object, timeout_s: int = 60, count: int = 2
) -> list[Running]:
    """The ranks of a host as `srun python -m mindspeed.verify` starts them."""
    return [
        hosts.start(
            host,
            python,
            "-m",
            "mindspeed.verify",
            "--timeout",
            timeout_s,
            *words,
            SLURM_PROCID=str(2 * host + local),
            SLURM_NTASKS="4",
            SLURM_LOCALID=str(local),
            SLURM_JOB_ID="4711",
            SLURM_STEP_ID="0",
            MASTER_ADDR=ADDRESSES[0],
        )
        for local in range(count)
    ]


def test_equal_hosts_pass_under_srun(hosts: TwoHosts, pythons: tuple[Path, Path]) -> None:
    ranks = [r for host in (0, 1) for r in start_ranks(hosts, host, pythons[0])]
    assert [rank.finish(timeout_s=90) for rank in ranks] == [0] * 4
    assert "ok: 4 ranks run build" in ranks[0].said


def test_an_odd_host_is_named_on_every_host(hosts: TwoHosts, pythons: tuple[Path, Path]) -> None:
    ranks = [r for host in (0, 1) for r in start_ranks(hosts, host, pythons[host])]
    assert [rank.finish(timeout_s=90) for rank in ranks] == [9] * 4
    for first in (ranks[0], ranks[2]):
        assert (
            "ranks 2, 3 on node-b: build is" in first.said or "ranks 0, 1 on node-a" in first.said
        )


@dataclass(frozen=True)
class Ended:
    """Ranks of the first and of the second host, and how all of them ended."""

    ours: list[Running]
    theirs: list[Running]
    codes: list[int]


@pytest.fixture(scope="module")
def cut_off(pythons: tuple[Path, Path]) -> Iterator[tuple[Ended, Ended]]:
    """Hosts cut off before the check, and others while three ranks wait for one that never comes.

    Both at once, for they only wait.
    """
    with open_hosts() as early, open_hosts() as late:
        early.cut()
        pairs = [
            (
                start_ranks(hosts, 0, pythons[0], timeout_s=6),
                start_ranks(hosts, 1, pythons[0], timeout_s=6, count=count),
            )
            for hosts, count in ((early, 2), (late, 1))
        ]
        wait_for_connection(late, pairs[1][1][0])
        late.cut()
        ended = [
            Ended(ours, theirs, [rank.finish(timeout_s=90) for rank in (*ours, *theirs)])
            for ours, theirs in pairs
        ]
        yield ended[0], ended[1]


def wait_for_connection(hosts: TwoHosts, rank: Running) -> None:
    """Until `rank`, on the second host, is connected with the first."""
    space = ["ip", "netns", "exec", hosts.spaces[0], "cat", "/proc/net/tcp", "/proc/net/tcp6"]
    remote = "".join(f"{int(part):02X}" for part in reversed(ADDRESSES[1].split(".")))
    while remote not in subprocess.run(space, capture_output=True, text=True, check=True).stdout:
        assert rank.process.poll() is None, rank.said


def test_a_host_cut_off_before_the_check_stops_both_sides_in_time(
    cut_off: tuple[Ended, Ended],
) -> None:
    early = cut_off[0]
    assert early.codes == [9] * 4
    assert "ranks 2, 3 of 4 did not take part within 6 s" in early.ours[0].said
    assert f"cannot reach the store at {ADDRESSES[0]}" in early.theirs[0].said


def test_a_host_cut_off_during_the_check_stops_both_sides_in_time(
    cut_off: tuple[Ended, Ended],
) -> None:
    late = cut_off[1]
    assert late.codes == [9] * 3
    assert "did not take part within 6 s" in late.ours[0].said
    assert "dead or cut off" in late.theirs[0].said
