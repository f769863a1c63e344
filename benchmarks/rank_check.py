"""What the comparison of ranks costs at the start of a run, on torch's own TCP store.

    python benchmarks/rank_check.py

Every rank has its own connection to one store over loopback and runs `RankCheck` in a thread; the
time is that of the slowest rank, from the moment all are ready. Threads of one process share one
interpreter, so the growth with ranks is an upper bound.
"""

import importlib.util
import os
import statistics
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

FILE = Path(__file__).parents[1] / "overlays/base/ascend/files/mindspeed/core/agreement.py"
SIZES = (8, 64, 512)
ROUNDS = 5
LIMIT_MS = 50.0
FACTS = {"build": "a" * 16, "torch": "2.13.0", "torch_npu": "2.13.0", "origin": "this build"}


def load_agreement() -> ModuleType:
    """The overlay's module, without the rest of a build."""
    spec = importlib.util.spec_from_file_location("agreement", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


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


def main() -> None:
    """Print the table."""
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # a store needs no device
    agreement = load_agreement()
    took = {size: measure(agreement, size) for size in SIZES}
    print("| ranks | slowest rank | per rank |\n|---|---|---|")
    for size, ms in took.items():
        print(f"| {size} | {ms:.1f} ms | {ms / size * 1e3:.0f} µs |")
    print(f"\nLimit at 8 ranks: {LIMIT_MS:.0f} ms; used {took[8] / LIMIT_MS:.0%}.")


if __name__ == "__main__":
    main()
