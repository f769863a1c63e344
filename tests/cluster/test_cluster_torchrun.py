"""The example of the docs trains on two hosts, ends with a cut cable, and refuses an odd host."""

from pathlib import Path

from cluster.two_hosts import ADDRESSES, NEEDS_HOSTS, Running, TwoHosts

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / "tools"
SCRIPT = ROOT / "docs/cluster/torchrun.sh"
TRAIN = Path(__file__).with_name("train_steps.py")

pytestmark = NEEDS_HOSTS


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
