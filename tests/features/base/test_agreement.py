"""The comparison of ranks: what it costs as ranks grow, and what it says of every bad day."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from harness.modules import import_file

FILE = Path(__file__).parents[3] / "overlays/base/ascend/files/mindspeed/core/agreement.py"
FACTS = {"build": "aaaa", "torch": "2.13.0", "torch_npu": "2.13.0", "python": "3.11.2"}

agreement = import_file(FILE)


class CountingStore:
    """A store in this process that counts requests and bytes of each rank; waits never block."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.requests: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self.who = ""

    def _count(self, *words: str) -> None:
        self.requests[self.who] += 1
        self.sent[self.who] += sum(map(len, words))

    def set(self, key: str, value: str) -> None:
        self._count(key, value)
        self.values[key] = value.encode()

    def get(self, key: str) -> bytes:
        self._count(key)
        return self.values[key]

    def add(self, key: str, amount: int) -> int:
        self._count(key, "12345678")
        total = int(self.values.get(key, b"0")) + amount
        self.values[key] = str(total).encode()
        return total

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        self._count(*keys)
        if any(key not in self.values for key in keys):
            raise RuntimeError("wait timeout")


def check(store: Any, rank: int, size: int, **changes: Any) -> Any:
    facts = {**FACTS, **changes.pop("facts", {})}
    options = {"run_id": "job.0", "timeout_s": 20.0, "node": f"node-{rank // 8}", **changes}
    return agreement.RankCheck(facts, store, rank, size, **options)


def play(size: int) -> CountingStore:
    """All ranks arrive and settle, one after the other."""
    store = CountingStore()
    checks = [check(store, rank, size) for rank in range(size)]
    for step in ("arrive", "settle"):
        for one in checks:
            store.who = str(one.rank)
            getattr(one, step)()
    return store


def test_sixteen_thousand_ranks_cost_each_a_handful_of_small_requests() -> None:
    store = play(16_384)
    last = str(16_383)
    assert {store.requests[str(rank)] for rank in range(16_383)} == {5}
    assert store.requests[last] == 7
    assert max(store.sent.values()) < 600
    # What the store keeps grows by one counter of a rank, no more.
    assert len(store.values) <= 16_384 + 3


@pytest.mark.parametrize("size", [8, 64, 512])
def test_the_cost_of_a_rank_does_not_grow_with_the_ranks(size: int) -> None:
    store = play(size)
    assert sum(store.requests.values()) == 5 * size + 2
    assert max(store.sent.values()) < 600


def run_ranks(size: int, **odd: Any) -> list[Any]:
    """Real threads on a real store of torch; what each rank got or raised.

    Args:
        size: number of ranks.
        odd: rank as `r3` to changes of its facts, or None for a rank that never comes.
    """
    from torch.distributed import HashStore  # type: ignore[attr-defined]

    store = HashStore()

    def run(rank: int) -> Any:
        changes = odd.get(f"r{rank}", {})
        if changes is None:
            return None
        try:
            return check(store, rank, size, facts=changes, timeout_s=3.0).run()
        except agreement.DisagreementError as error:
            return str(error)

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, range(size)))


def test_equal_ranks_pass() -> None:
    assert run_ranks(8) == [[]] * 8


def test_odd_ranks_are_named_with_their_hosts_to_all() -> None:
    said = run_ranks(16, r3={"build": "bbbb"}, r9={"build": "bbbb"}, r10={"torch": "2.7"})
    assert len(set(said)) == 1
    assert "rank 3 on node-0, rank 9 on node-1: build is bbbb, elsewhere aaaa" in said[0]
    assert "rank 10 on node-1: torch is 2.7, elsewhere 2.13.0" in said[0]


def test_what_may_differ_is_a_warning() -> None:
    said = run_ranks(4, r2={"python": "3.10.1"})
    assert said == [["rank 2 on node-0: python is 3.10.1, elsewhere 3.11.2"]] * 4


def test_a_rank_that_dies_stops_the_others_in_time_and_is_named() -> None:
    said = run_ranks(6, r1=None, r4=None)
    reports = {text for text in said if text is not None}
    assert len(reports) == 1
    assert "ranks 1, 4 of 6 did not take part within 3 s" in reports.pop()


def test_a_rank_that_dies_after_the_verdict_stops_the_others() -> None:
    store = CountingStore()
    checks = [check(store, rank, 3, facts={"build": str(rank)}) for rank in range(3)]
    for one in checks:
        one.arrive()
    for one in checks[1:]:
        with pytest.raises(agreement.DisagreementError, match="one died before it could say how"):
            one.settle()


def test_a_restart_reads_no_keys_of_the_run_before() -> None:
    store = CountingStore()
    first = [check(store, rank, 2, facts={"build": str(rank)}) for rank in range(2)]
    for one in first:
        one.arrive()
    again = [check(store, rank, 2, run_id="job.1") for rank in range(2)]
    for one in again:
        one.arrive()
    assert [one.settle() for one in again] == [[], []]


def test_a_second_check_on_one_store_reads_no_keys_of_the_first() -> None:
    store = CountingStore()
    for builds in (("x", "y"), ("x", "x")):
        checks = [check(store, rank, 2, facts={"build": builds[rank]}) for rank in range(2)]
        for one in checks:
            one.arrive()
    assert [one.settle() for one in checks] == [[], []]


def test_clocks_that_are_apart_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    skew = {"now": 0.0}
    monkeypatch.setattr(time, "time", lambda: skew["now"])
    store = CountingStore()
    checks = [check(store, rank, 3) for rank in range(3)]
    for one in checks:
        skew["now"] += 1e8 * (-1) ** one.rank
        one.arrive()
    assert [one.settle() for one in checks] == [[], [], []]


def test_a_store_that_never_answers_ends_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    class DeadStore(CountingStore):
        def add(self, key: str, amount: int) -> int:
            released.wait()
            return 0

    monkeypatch.setattr(agreement, "_GRACE_S", 0.1)
    try:
        with pytest.raises(agreement.DisagreementError, match="dead or cut off"):
            check(DeadStore(), 1, 2, timeout_s=0.1).run()
    finally:
        released.set()


def test_a_lost_connection_says_whose_host_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "node-0")

    class LostStore(CountingStore):
        def add(self, key: str, amount: int) -> int:
            raise RuntimeError("Connection reset by peer\nframes")

    with pytest.raises(agreement.DisagreementError, match=r"store at node-0.*Connection reset"):
        check(LostStore(), 1, 2).run()


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, "0"),
        ({"TORCHELASTIC_RUN_ID": "a", "TORCHELASTIC_RESTART_COUNT": "2"}, "a.2"),
        ({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1"}, "7.1.0"),
        ({"MINDSPEED_RUN_ID": "mine", "SLURM_JOB_ID": "7"}, "mine"),
    ],
)
def test_the_run_id_is_the_launchers(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: str
) -> None:
    for name in ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "MINDSPEED_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert agreement.find_run_id() == expected
