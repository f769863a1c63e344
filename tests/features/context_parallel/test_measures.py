"""What context parallelism sends, keeps and launches is what the formulas say."""

import itertools
from types import ModuleType
from typing import Any

import pytest

from ascend_sim import ranks
from features.context_parallel.cp_case import Case
from features.context_parallel.cp_measures import measure

SHAPE: dict[str, Any] = {
    "length": 64,
    "batch": 2,
    "heads": 8,
    "key_heads": 2,
    "width": 16,
    "value_width": 12,
}
RANKS = 4
OUT_BYTES = 64 // RANKS * 2 * 8 * 12 * 4
QUERY_BYTES = 64 // RANKS * 2 * 8 * 16 * 4
KEY_BYTES = 64 // RANKS * 2 * 2 * (16 + 12) * 4
GRANULE = 512  # of the allocator, and more than it adds to each tensor

# Case; formula and its options; what the formula counts that lay there before, and the reverse: the
# output of Ulysses is traded back into a tensor of its own, which belongs to the layer behind.
CASES: dict[str, tuple[dict[str, Any], str, dict[str, Any], int]] = {
    "ring": ({}, "ring", {}, -QUERY_BYTES),
    "ring, lanes": ({"lanes": 2}, "ring", {}, -QUERY_BYTES),
    "ring, half": ({"keep": "half"}, "ring", {"keep": "half"}, -QUERY_BYTES),
    "ring, full": ({"keep": "full"}, "ring", {"keep": "full"}, -QUERY_BYTES),
    "double": (
        {"algorithm": "double_ring", "window": 2, "lanes": 4},
        "ring",
        {"window": 2},
        -QUERY_BYTES,
    ),
    "ulysses": ({"algorithm": "ulysses"}, "ulysses", {}, OUT_BYTES),
    "hybrid": ({"algorithm": "hybrid"}, "hybrid", {"ulysses": 2}, OUT_BYTES),
    "gather": ({"algorithm": "kv_allgather"}, "kv_allgather", {}, -QUERY_BYTES - KEY_BYTES),
    "gather, full": (
        {"algorithm": "kv_allgather", "keep": "full"},
        "kv_allgather",
        {"keep": "full"},
        -QUERY_BYTES - KEY_BYTES,
    ),
}

Found = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def found(mindspeed_path: str) -> Found:
    """For each case, what each rank measured."""
    cases = [Case(**{"algorithm": "ring", "npu": True, **SHAPE, **c[0]}) for c in CASES.values()]
    server = ranks.server(path=[mindspeed_path], preload=ranks.DEFAULT_PRELOAD)
    by_rank = server.run(measure, cases, world_size=RANKS, timeout_s=200)
    return {name: list(rows) for name, rows in zip(CASES, zip(*by_rank, strict=True), strict=True)}


@pytest.mark.parametrize("name", CASES)
def test_bytes_and_messages_are_those_of_the_formula(
    found: Found, costs: ModuleType, name: str
) -> None:
    _, formula, options, _ = CASES[name]
    shape = costs.Shape(**SHAPE, element_bytes=4)
    cost = getattr(costs, f"cost_{formula}")(shape, RANKS, **options)
    for row in found[name]:
        for key in ("forward_bytes", "backward_bytes", "forward_messages", "backward_messages"):
            assert row[key] == getattr(cost, key), key


@pytest.mark.parametrize("name", CASES)
def test_kept_activations_are_those_of_the_formula(
    found: Found, costs: ModuleType, name: str
) -> None:
    _, formula, options, elsewhere = CASES[name]
    shape = costs.Shape(**SHAPE, element_bytes=4)
    want = getattr(costs, f"cost_{formula}")(shape, RANKS, **options).kept_bytes + elsewhere
    for row in found[name]:
        assert 0 <= row["kept_bytes"] - want <= 10 * GRANULE


def test_visiting_blocks_do_not_grow_with_the_ring_and_do_with_the_gather(
    mindspeed_path: str, found: Found, costs: ModuleType
) -> None:
    fewer = SHAPE | {"length": 48}
    cases = [Case(algorithm, npu=True, **fewer) for algorithm in ("ring", "kv_allgather")]
    server = ranks.server(path=[mindspeed_path], preload=ranks.DEFAULT_PRELOAD)
    (ring, gather), *_ = server.run(measure, cases, world_size=3, timeout_s=100)
    assert ring["peak_bytes"] == found["ring"][0]["peak_bytes"]
    visiting = [
        costs.cost_kv_allgather(costs.Shape(**s, element_bytes=4), p).visiting_bytes
        for s, p in ((fewer, 3), (SHAPE, 4))
    ]
    grown = found["gather"][0]["peak_bytes"] - gather["peak_bytes"]
    assert abs(grown - (visiting[1] - visiting[0])) <= visiting[0] // 6


@pytest.mark.parametrize("algorithm", ["ring", "ulysses"])
def test_memory_falls_with_the_number_of_ranks(
    mindspeed_path: str, found: Found, algorithm: str
) -> None:
    case = Case(algorithm, npu=True, **(SHAPE | {"key_heads": 8}))
    server = ranks.server(path=[mindspeed_path], preload=ranks.DEFAULT_PRELOAD)
    two, four = (
        server.run(measure, [case], world_size=size, timeout_s=100)[0][0] for size in (2, 4)
    )
    assert 1.9 <= two["kept_bytes"] / four["kept_bytes"] <= 2.1
    if algorithm == "ulysses":  # of two ranks of a ring each has one visitor, of more two
        assert 1.9 <= two["both_peak_bytes"] / four["both_peak_bytes"] <= 2.1


@pytest.mark.parametrize("name", ["ring", "ring, lanes", "double"])
def test_every_message_that_can_be_hidden_is_launched_before_the_computation(
    found: Found, name: str
) -> None:
    for row in found[name]:
        exposed = []
        computed: dict[int, int] = {}
        count = 0
        for kind, operator, launch in row["log"]:
            count += kind == "compute" and "fusion_attention" in operator
            if kind == "launch" and operator in ("send", "recv"):
                computed[launch] = count
            if kind == "wait" and computed.get(launch) == count:
                exposed.append(launch)
        # What is left: the last hop of gradients, home to the owner, which nothing can hide.
        assert len(exposed) <= 2
        assert row["unwaited"] == []


def test_messages_between_windows_have_a_whole_window_to_arrive(found: Found) -> None:
    for row in found["double"]:
        log = itertools.takewhile(lambda event: event[0] != "mark", row["log"])
        count, launched, hidden = 0, {}, []
        for kind, operator, launch in log:
            count += kind == "compute" and "fusion_attention" in operator
            if kind == "launch" and operator == "recv":
                launched[launch] = count
            if kind == "wait" and operator == "recv":
                hidden.append(count - launched[launch])
        assert sorted(hidden) == [1, 1, 2]


def test_causal_work_is_the_same_on_every_rank_and_half_of_all(costs: ModuleType) -> None:
    for length, size in ((64, 4), (4096, 8), (48, 3)):
        work = [costs.count_scores(length, size, rank, causal=True) for rank in range(size)]
        assert max(work) == min(work)
        assert sum(work) == length * (length + 1) // 2


def test_no_rank_computes_a_whole_block_that_is_hidden(found: Found) -> None:
    for row in found["ring"]:
        calls = [name for kind, name, _ in row["log"] if kind == "compute" and "fusion" in name]
        assert calls.count("npu_fusion_attention") == RANKS
        assert calls.count("npu_fusion_attention_grad") == RANKS
