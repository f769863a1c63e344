"""Two hosts with addresses of their own: the check before a run, training, and a cut cable."""

import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.two_hosts import ADDRESSES, Running, TwoHosts, can_make_hosts, open_hosts

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / "tools"
SCRIPT = ROOT / "docs/cluster/torchrun.sh"
TRAIN = Path(__file__).with_name("train_steps.py")
ODD = "--without=fusions/fused-swiglu"

pytestmark = [
    pytest.mark.network,
    pytest.mark.skipif(not can_make_hosts(), reason="network namespaces need root and iproute2"),
]


@pytest.fixture(scope="module")
def pythons(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The Pythons of two environments: the build of the cluster, and an odd one."""
    made = []
    for name, words in (("build", []), ("odd", [ODD])):
        folder = tmp_path_factory.mktemp(name)
        tool = [sys.executable, "-m", "mindspeed_overlay", "-q", "build", "--out", str(folder)]
        environment = {**os.environ, "PYTHONPATH": str(TOOLS)}
        done = subprocess.run(
            [*tool, *words], check=True, capture_output=True, text=True, env=environment
        )
        venv = folder / "venv"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
        uv = [sys.executable, "-m", "uv", "pip", "install", "-q", "--no-deps", "--no-index"]
        python = venv / "bin/python"
        subprocess.run([*uv, "--python", str(python), done.stdout.strip()], check=True)
        site = next((venv / "lib").glob("python*/site-packages"))
        (site / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
        made.append(python)
    return made[0], made[1]


@pytest.fixture
def hosts() -> Iterator[TwoHosts]:
    with open_hosts() as made:
        yield made


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


def test_a_host_cut_off_before_the_check_stops_both_sides_in_time(
    hosts: TwoHosts, pythons: tuple[Path, Path]
) -> None:
    hosts.cut()
    ours = start_ranks(hosts, 0, pythons[0], timeout_s=6)
    theirs = start_ranks(hosts, 1, pythons[0], timeout_s=6)
    assert [rank.finish(timeout_s=90) for rank in (*ours, *theirs)] == [9] * 4
    assert "ranks 2, 3 of 4 did not take part within 6 s" in ours[0].said
    assert f"cannot reach the store at {ADDRESSES[0]}" in theirs[0].said


def test_a_host_cut_off_during_the_check_stops_both_sides_in_time(
    hosts: TwoHosts, pythons: tuple[Path, Path]
) -> None:
    """Three ranks wait for the fourth, which never comes, when the cable is pulled."""
    ours = start_ranks(hosts, 0, pythons[0], timeout_s=6)
    theirs = start_ranks(hosts, 1, pythons[0], timeout_s=6, count=1)
    connected = f"{ADDRESSES[1]}"
    space = ["ip", "netns", "exec", hosts.spaces[0], "cat", "/proc/net/tcp", "/proc/net/tcp6"]
    remote = "".join(f"{int(part):02X}" for part in reversed(connected.split(".")))
    while remote not in subprocess.run(space, capture_output=True, text=True, check=True).stdout:
        assert theirs[0].process.poll() is None, theirs[0].said
    hosts.cut()
    assert [rank.finish(timeout_s=60) for rank in (*ours, *theirs)] == [9] * 3
    assert "did not take part within 6 s" in ours[0].said
    assert "dead or cut off" in theirs[0].said


def start_run(
    hosts: TwoHosts, pythons: tuple[Path, Path], *words: object
) -> tuple[Running, Running]:
    """The example of the docs on both hosts, two simulated devices each."""

    def start(host: int) -> Running:
        return hosts.start(
            host,
            pythons[host],
            "-m",
            "ascend_sim",
            "run",
            "--devices",
            "2",
            "--",
            "bash",
            SCRIPT,
            *words,
            PYTHONPATH=str(TOOLS),
            PYTHON=str(pythons[host]),
            NNODES="2",
            NODE_RANK=str(host),
            NPROC_PER_NODE="2",
            MASTER_ADDR=ADDRESSES[0],
            IFNAME="eth0",
            VERIFY_TIMEOUT_S="60",
            OMP_NUM_THREADS="1",
            TORCHDYNAMO_DISABLE="1",
        )

    return start(0), start(1)


def test_the_example_trains_and_a_cut_cable_ends_it(
    hosts: TwoHosts, pythons: tuple[Path, Path]
) -> None:
    first, second = start_run(hosts, (pythons[0], pythons[0]), TRAIN, 100_000)
    for rank, running in ((0, first), (3, second)):
        running.wait_for(f"step 3 rank {rank} loss", timeout_s=240)
    assert "ok: 4 ranks run build" in first.said
    losses = [line.split()[-1] for line in first.said.splitlines() if " rank 0 loss " in line]
    assert float(losses[2]) < float(losses[0])
    hosts.cut()
    assert first.finish(timeout_s=120) != 0
    assert second.finish(timeout_s=120) != 0


def test_the_example_trains_nothing_on_an_odd_host(
    hosts: TwoHosts, pythons: tuple[Path, Path]
) -> None:
    first, second = start_run(hosts, pythons, TRAIN, 3)
    assert first.finish(timeout_s=240) != 0
    assert second.finish(timeout_s=240) != 0
    assert "the ranks do not run the same" in first.said
    assert "node-b" in first.said or "node-a" in first.said
    assert "step 1" not in first.said + second.said
