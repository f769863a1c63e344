"""The rank runner: results, failures, hangs, the pytest marker. Plain CPU torch, no device."""

import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ascend_sim import ranks
from sim import rank_targets

pytest_plugins = ["pytester"]


@pytest.fixture(scope="module")
def server() -> Iterator[ranks.ForkServer]:
    with ranks.ForkServer(preload=("torch",)) as started:
        yield started


def test_results_come_back_in_order_of_rank(server: ranks.ForkServer) -> None:
    results = server.run(
        rank_targets.sum_of_ranks, 1.0, kwargs={"step": 0.5}, world_size=3, backend="gloo"
    )

    assert [result.item() for result in results] == [6.5, 6.5, 6.5]


def test_a_target_may_be_named_by_a_string(server: ranks.ForkServer) -> None:
    found = server.run("sim.rank_targets:environment", world_size=2, backend=None)

    assert [e["RANK"] for e in found] == ["0", "1"]
    assert {e["WORLD_SIZE"] for e in found} == {"2"}
    assert {e["LOCAL_WORLD_SIZE"] for e in found} == {"2"}


def test_ranks_meet_again_after_destroying_the_group(server: ranks.ForkServer) -> None:
    assert server.run(rank_targets.join_twice, world_size=3, backend=None) == [
        [3.0, 3.0],
        [6.0, 6.0],
        [6.0, 6.0],
    ]


def test_the_failing_rank_is_reported_and_the_waiting_ones_are_not(
    server: ranks.ForkServer,
) -> None:
    started = time.monotonic()
    with pytest.raises(ranks.RankError, match="rank 1 failed") as caught:
        server.run(rank_targets.fail_on_rank_one, world_size=3, backend="gloo", timeout_s=60)

    assert time.monotonic() - started < 20
    assert list(caught.value.failures) == [1]
    assert "in fail_on_rank_one" in str(caught.value)
    assert "ValueError: rank one gives up" in str(caught.value)
    assert "about to fail" in str(caught.value)


def test_a_hang_ends_at_the_limit_with_the_stacks_of_all_ranks(server: ranks.ForkServer) -> None:
    with pytest.raises(ranks.RankError, match=r"ranks \[0, 1, 2\] did not finish") as caught:
        server.run(rank_targets.hang_on_rank_one, world_size=3, backend="gloo", timeout_s=1.5)

    for rank in range(3):
        assert "in hang_on_rank_one" in caught.value.failures[rank]


def test_a_rank_that_dies_is_named_with_its_signal(server: ranks.ForkServer) -> None:
    with pytest.raises(ranks.RankError) as caught:
        server.run(rank_targets.die_on_rank_one, world_size=2, backend="gloo")

    assert list(caught.value.failures) == [1]
    assert "died of SIGSEGV" in caught.value.failures[1]
    assert "in die_on_rank_one" in caught.value.failures[1]


def test_the_server_serves_on_after_a_failed_call(server: ranks.ForkServer) -> None:
    with pytest.raises(ranks.RankError):
        server.run(rank_targets.die_on_rank_one, world_size=2, backend="gloo")

    assert server.run(rank_targets.sum_of_ranks, 0.0, world_size=2, backend="gloo")[1].item() == 1.0


def test_a_function_no_other_process_can_find_is_refused(server: ranks.ForkServer) -> None:
    with pytest.raises(ValueError, match="module-level"):
        server.run(lambda: None, world_size=1, backend=None)


def test_path_decides_which_module_is_imported(tmp_path: Path) -> None:
    for name in ("pristine", "patched"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "tree_name.py").write_text(f"def name():\n    return {name!r}\n")

    names = []
    for name in ("pristine", "patched"):
        with ranks.ForkServer(path=[str(tmp_path / name)], preload=("tree_name",)) as tree:
            names.append(tree.run("tree_name:name", world_size=1, backend=None))

    assert names == [["pristine"], ["patched"]]


def test_ranks_are_spawned_where_a_preloaded_module_runs_threads(tmp_path: Path) -> None:
    (tmp_path / "threaded.py").write_text(
        textwrap.dedent(
            """
            import threading

            waiter = threading.Thread(target=threading.Event().wait, daemon=True)
            waiter.start()

            def alive(offset):
                return waiter.is_alive(), offset
            """
        )
    )

    with ranks.ForkServer(path=[str(tmp_path)], preload=("threaded",)) as tree:
        alive = tree.run("threaded:alive", 3, world_size=2, backend=None)

    assert alive == [(True, 3), (True, 3)]


def test_ranks_are_spawned_where_a_preloaded_module_uses_the_device(tmp_path: Path) -> None:
    (tmp_path / "eager.py").write_text(
        textwrap.dedent(
            """
            import torch

            table = torch.arange(4.0, device="npu")

            def total(rank_offset):
                return table.sum() + rank_offset
            """
        )
    )

    preload = ("ascend_sim:install", "eager")
    with ranks.ForkServer(path=[str(tmp_path)], preload=preload) as tree:
        (total,) = tree.run("eager:total", 1, world_size=1, backend="hccl")

    assert (total.item(), total.device.type) == (7.0, "cpu")


def test_a_failing_import_is_reported_with_its_traceback(tmp_path: Path) -> None:
    (tmp_path / "broken_module.py").write_text("raise OSError('no such library')\n")

    with (
        ranks.ForkServer(path=[str(tmp_path)], preload=("broken_module",)) as tree,
        pytest.raises(ranks.RankError, match="no such library"),
    ):
        tree.run("broken_module:anything", world_size=1, backend=None)


def test_marked_tests_run_on_ranks_and_show_operands(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import os
        import threading
        import pytest

        @pytest.fixture
        def lock():
            return threading.Lock()

        @pytest.mark.ranks(2, preload=(), backend=None)
        @pytest.mark.parametrize("width", [3])
        def test_passes(width, tmp_path):
            (tmp_path / os.environ["RANK"]).write_text("here")
            assert width == 3

        @pytest.mark.ranks(2, preload=(), backend=None)
        def test_fails_on_one():
            seen = int(os.environ["RANK"])
            assert seen + 10 == 10

        @pytest.mark.ranks(2, preload=(), backend=None)
        def test_needs_a_lock(lock):
            pass

        class TestInAClass:
            @pytest.mark.ranks(2, preload=(), backend=None)
            def test_has_a_self(self, tmp_path):
                assert type(self) is TestInAClass and tmp_path.exists()

        @pytest.mark.ranks(2, width=3)
        def test_has_a_wrong_keyword():
            pass
        """
    )

    result = pytester.runpytest_inprocess("-p", "ascend_sim.ranks_plugin", "-p", "no:cacheprovider")

    result.assert_outcomes(passed=2, failed=3)
    output = result.stdout.str()
    assert "rank 1 failed" in output
    assert "assert (1 + 10) == 10" in output
    assert "fixture 'lock' cannot be handed to ranks" in output
    assert "ranks takes one number" in output
