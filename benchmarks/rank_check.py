"""What the comparison of ranks costs at the start of a run, on torch's own TCP store.

    python benchmarks/rank_check.py

First on 8 processes of the simulated device that call `initialize_model_parallel` of a build: the
time that the slowest rank spends in the check there, from a barrier on, median of fresh starts,
and the processor time of one rank. Then the growth: every rank has its own connection to one store
over loopback and runs `RankCheck` in a thread; the time is that of the slowest rank, from the
moment all are ready. Threads of one process share one interpreter, so that is an upper bound.
What a rank asks of a simulated store at 16,384 ranks is counted by
tests/features/base/test_agreement.py.
"""

import compileall
import gc
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests")]

from ascend_sim import ranks  # noqa: E402  (from this checkout)
from harness.modules import import_file  # noqa: E402

FILE = ROOT / "overlays/base/ascend/files/mindspeed/core/agreement.py"
SIZES = (8, 64, 512)
ROUNDS = 5
LIMIT_MS = 50.0
FACTS = {"build": "a" * 16, "torch": "2.13.0", "torch_npu": "2.13.0", "origin": "this build"}


def measure(agreement: Any, size: int) -> float:
    """Milliseconds of the slowest of `size` ranks, median of the rounds."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    wait = timedelta(seconds=60)

    def connect(_: int) -> Any:
        return TCPStore("127.0.0.1", server.port, timeout=wait)

    found = []
    with ThreadPoolExecutor(size) as pool:
        clients = list(pool.map(connect, range(size)))
        for number in range(ROUNDS):
            ready = threading.Barrier(size)

            def run(rank: int, number: int = number, ready: threading.Barrier = ready) -> float:
                check = agreement.RankCheck(FACTS, clients[rank], rank, size, run_id=str(number))
                ready.wait()
                start = time.perf_counter()
                check.arrive()
                assert check.settle() == []
                return (time.perf_counter() - start) * 1e3

            found.append(max(pool.map(run, range(size))))
    return statistics.median(found)


def unpack_build(folder: Path) -> Path:
    """A build of the default release, as site-packages would hold it."""
    command = [sys.executable, "-m", "mindspeed_overlay", "-q", "build", "--out", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tools")}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    with zipfile.ZipFile(done.stdout.strip()) as wheel:
        wheel.extractall(folder / "site")
    compileall.compile_dir(folder / "site/mindspeed", quiet=1)  # as pip does
    return folder / "site"


def time_start() -> tuple[float, float]:
    """Milliseconds that this rank's first start spends in the check, and of the processor."""
    import torch.distributed as dist
    from megatron.core import parallel_state
    from mindspeed.core import start

    check, took = start.check_start, []

    def timed_check() -> None:
        wall, processor = time.perf_counter(), time.process_time()
        check()
        took.append((time.perf_counter() - wall, time.process_time() - processor))

    start.check_start = timed_check
    gc.collect()  # copies the pages that a forked process copies at the first touch
    dist.barrier()
    parallel_state.initialize_model_parallel()
    dist.barrier()
    ((wall, processor),) = took
    return wall * 1e3, processor * 1e3


def measure_in_megatron(size: int) -> tuple[float, float]:
    """Milliseconds of the slowest rank, and of a rank's processor; medians of fresh starts."""
    slowest, processor = [], []
    with tempfile.TemporaryDirectory() as folder:
        preload = (*ranks.DEFAULT_PRELOAD, "megatron.core.parallel_state")
        with ranks.ForkServer(path=[str(unpack_build(Path(folder)))], preload=preload) as server:
            for _ in range(ROUNDS):
                found = server.run("rank_check:time_start", world_size=size, timeout_s=300)
                slowest.append(max(wall for wall, _ in found))
                processor += [spent for _, spent in found]
    return statistics.median(slowest), statistics.median(processor)


def main() -> None:
    """Print the tables."""
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # a store needs no device
    wall, processor = measure_in_megatron(8)
    print(
        f"In `initialize_model_parallel`, 8 ranks: {wall:.1f} ms for the slowest, {processor:.1f} "
        f"ms of the processor for each. Limit: {LIMIT_MS:.0f} ms; used {wall / LIMIT_MS:.0%}.\n"
    )
    agreement = import_file(FILE)
    took = {size: measure(agreement, size) for size in SIZES}
    print("| ranks | slowest rank | per rank |\n|---|---|---|")
    for size, ms in took.items():
        print(f"| {size} | {ms:.1f} ms | {ms / size * 1e3:.0f} µs |")


if __name__ == "__main__":
    main()
