"""A port killed with SIGKILL before any change it makes to the disk, and gone on with after it."""

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mindspeed_overlay.port.session import abort_port
from mindspeed_overlay.source.transport import run_git
from unit.port.port_sets import MLP, TAGS
from unit.port.test_port_session import HOOK, Set, make_clashing, solve

EVERY_STEP = pytest.mark.parametrize("stride", [pytest.param(1, marks=pytest.mark.slow), 6])


def is_change(event: str, arguments: tuple[object, ...], root: str) -> bool:
    """Whether an audited event changes the disk below `root`.

    Changes are renames, removed files, new folders, files opened to write, and every start of git
    there, which writes by itself.
    """
    first = str(arguments[0]) if arguments else ""
    if event == "open":
        return isinstance(arguments[2], int) and bool(arguments[2] & 3) and first.startswith(root)
    if event == "subprocess.Popen":
        return str(arguments[2]).startswith(root)
    return event == "os.remove" or (event in ("os.rename", "os.mkdir") and first.startswith(root))


def kill_at(step: int, action: Callable[[], object], root: str) -> bool:
    """Run an action in a process that dies before its `step`-th change; gives whether it did."""
    child = os.fork()
    if child == 0:
        left = step

        def count(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal left
            if is_change(event, arguments, root):
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            sys.addaudithook(count)
            action()
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.waitstatus_to_exitcode(status) == 0, step
    return False


class Scene:
    """A port at some point, and a copy of it to come back to."""

    def __init__(self, made: Set) -> None:
        self.made = made
        self._root = made.work.parent
        self._copy = self._root / "copy"
        self._names = ("overlays", "work")
        for name in self._names:
            if (self._root / name).exists():
                shutil.copytree(self._root / name, self._copy / name, symlinks=True)

    def restore(self) -> None:
        for name in self._names:
            shutil.rmtree(self._root / name, ignore_errors=True)
            if (self._copy / name).exists():
                shutil.copytree(self._copy / name, self._root / name, symlinks=True)

    def kill_everywhere(self, action: Callable[[], object], stride: int = 1) -> Iterator[int]:
        """Kill an action at each of its steps in turn; ends when it is through."""
        for step in range(0, 1000, stride):
            self.restore()
            if not kill_at(step, action, str(self._root)):
                assert step > 5
                return
            yield step


@pytest.fixture
def made(tmp_path: Path) -> Set:
    """Two overlays, of which the first conflicts."""
    return make_clashing(tmp_path)


def go_on(made: Set, *skip: str) -> None:
    """What a person types after a kill; a port that came to its end needs nothing more."""
    if (made.work / "port.json").is_file():
        made.go_on(*skip)


def finish(made: Set) -> dict[str, bytes]:
    solve(made)
    assert made.go_on().exit_code == 0
    return made.read()


@EVERY_STEP
def test_a_start_killed_anywhere_comes_to_the_same_conflict(made: Set, stride: int) -> None:
    scene = Scene(made)
    before = made.read()
    made.start()
    laid_out = (made.work / "tree" / MLP).read_bytes()
    wanted = finish(made)
    for step in scene.kill_everywhere(made.start, stride):
        assert made.read() == before, step
        if (made.work / "port.json").is_file():
            assert made.go_on().exit_code == 5
        else:
            assert made.start().exit_code == 5
        assert (made.work / "tree" / MLP).read_bytes() == laid_out, step
        assert b"UU " in run_git(made.work / "tree", ["status", "--porcelain=v1"])
    assert finish(made) == wanted


def test_a_continue_killed_anywhere_writes_the_same_overlays(made: Set) -> None:
    made.start()
    solve(made)
    scene = Scene(made)
    assert made.go_on().exit_code == 0
    wanted = made.read()
    for step in scene.kill_everywhere(made.go_on):
        go_on(made)
        assert made.read() == wanted, step
        assert not (made.work / "port.json").exists()


@EVERY_STEP
def test_a_continue_killed_while_it_lays_out_takes_nothing_for_a_solution(
    made: Set, stride: int
) -> None:
    """Half of a conflict laid out looks like a file that somebody deleted, or solved."""
    made.start()
    scene = Scene(made)
    before = made.read()
    for step in scene.kill_everywhere(made.go_on, stride):
        assert made.go_on().exit_code == 5, step
        assert made.read() == before, step
    assert HOOK in finish(made)[f"fusions/one/patches/{TAGS[1]}/megatron.core.mlp.patch"].replace(
        b"\n+", b"\n"
    )


@EVERY_STEP
def test_work_begun_on_a_conflict_outlives_a_continue_killed_anywhere(
    made: Set, stride: int
) -> None:
    made.start()
    place = made.work / "tree" / MLP
    place.write_bytes(place.read_bytes() + b"\n\nBEGUN = True\n")
    scene = Scene(made)
    begun = place.read_bytes()
    assert made.go_on().exit_code == 5
    assert place.read_bytes() == begun
    for step in scene.kill_everywhere(made.go_on, stride):
        assert made.go_on().exit_code == 5
        assert place.read_bytes() == begun, step


def test_a_skip_killed_anywhere_writes_the_same_overlays(made: Set) -> None:
    made.start()
    scene = Scene(made)
    assert made.go_on("fusions/one").exit_code == 0
    wanted = made.read()
    for step in scene.kill_everywhere(lambda: made.go_on("fusions/one")):
        go_on(made, "fusions/one")
        assert made.read() == wanted, step


def test_an_abort_killed_anywhere_is_done_again(made: Set) -> None:
    before = made.read()
    made.start()
    scene = Scene(made)
    for step in scene.kill_everywhere(lambda: abort_port(made.work)):
        assert made.read() == before, step
        if made.work.exists():
            abort_port(made.work)
        assert not made.work.exists()
    assert made.start().exit_code == 5
