"""Schedules as data: whether they compute attention, how long they take, what they send."""

import importlib
import itertools
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.fixture(scope="module")
def load(mindspeed_path: str) -> Iterator[type]:
    """Import modules of the overlays from their folder, and forget them again."""
    sys.path.insert(0, mindspeed_path)

    class Load:
        schedule = importlib.import_module("mindspeed.core.context_parallel.schedule")
        ring = importlib.import_module("mindspeed.core.context_parallel.ring")
        double_ring = importlib.import_module("mindspeed.core.context_parallel.double_ring")
        adaptive = importlib.import_module("mindspeed.core.context_parallel.adaptive")

    yield Load
    sys.path.remove(mindspeed_path)
    for name in [name for name in sys.modules if name.split(".")[0] == "mindspeed"]:
        del sys.modules[name]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8])
def test_rings_are_schedules_in_which_everybody_sends_alike(load: type, size: int) -> None:
    windows = [w for w in range(1, size + 1) if size % w == 0]
    for schedule in [
        load.ring.schedule_ring(size),  # type: ignore[attr-defined]
        *(load.double_ring.schedule_double_ring(size, w) for w in windows),  # type: ignore[attr-defined]
    ]:
        check: ModuleType = load.schedule  # type: ignore[attr-defined]
        check.check_schedule(schedule)
        assert len(schedule.steps) == size
        sends = [m.src for step in schedule.steps for m in step.moves]
        home = [m.src for moves in schedule.gradient_moves for m in moves]
        for rank in range(size):
            assert sends.count(rank) == home.count(rank) == size - 1


def test_a_window_must_divide_the_ring(load: type) -> None:
    with pytest.raises(ValueError, match="does not divide"):
        load.double_ring.schedule_double_ring(6, 4)  # type: ignore[attr-defined]


def test_what_is_no_schedule_is_refused(load: type) -> None:
    module: ModuleType = load.schedule  # type: ignore[attr-defined]
    move, step, make = module.Move, module.Step, module.Schedule
    attend_all = (step(((0,), (1,))), step(((1,), (0,))))
    with pytest.raises(ValueError, match="has not got"):
        module.check_schedule(make((0, 1), attend_all))
    moves = (move(0, 0, 1), move(1, 1, 0))
    with pytest.raises(ValueError, match="exactly once"):
        module.check_schedule(make((0, 1), (step(((0,), (1,)), moves),)))
    with pytest.raises(ValueError, match="has no block"):
        module.check_schedule(make((0, 1), (step(((0,), (1,)), (move(0, 1, 0),)),)))
    both = (step(((0,), (1,)), moves), step(((1,), (0,))))
    module.check_schedule(make((0, 1), both))
    with pytest.raises(ValueError, match="owner first"):
        module.check_schedule(make((0, 1), (step(((), ()), moves), step(((1,), (0,))), both[0])))


@settings(max_examples=60, deadline=None)
@given(data=st.data(), size=st.integers(1, 7))
def test_needed_blocks_take_the_fewest_steps(load: type, data: st.DataObject, size: int) -> None:
    flags = data.draw(st.lists(st.booleans(), min_size=size * size, max_size=size * size))
    needs = tuple(tuple(flags[r * size : (r + 1) * size]) for r in range(size))
    schedule = load.adaptive.schedule_needed(needs)  # type: ignore[attr-defined]
    load.schedule.check_schedule(schedule, complete=False)  # type: ignore[attr-defined]
    others = [(r, b) for r, b in itertools.product(range(size), repeat=2) if r != b and needs[r][b]]
    ranks = [sum(r == node for r, _ in others) for node in range(size)]
    blocks = [sum(b == node for _, b in others) for node in range(size)]
    assert len(schedule.steps) == 1 + max(ranks + blocks)
    attended = {
        (rank, block)
        for step in schedule.steps
        for rank, held in enumerate(step.attends)
        for block in held
    }
    assert attended == set(others) | {(rank, rank) for rank in range(size)}
    assert sum(len(step.moves) for step in schedule.steps) == len(others)
