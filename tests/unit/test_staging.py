"""Staging a tree: all or nothing, killed wherever it may be."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from mindspeed_overlay import staging
from mindspeed_overlay.errors import ApplyError
from mindspeed_overlay.staging import stage_tree, write_files

OLD = {"megatron/core/a.py": b"old\n", "gone.txt": b"gone"}
NEW = {"megatron/core/a.py": b"new\n", "mindspeed/b.py": b"\xff\r\n"}

# The audit hook sees every system call that Python makes by name; the Nth child is killed at the
# Nth. Each child has its own folder, and the parent prints how each of them ended.
KILLED_RUNS = """
    import os, signal, sys
    from pathlib import Path
    from mindspeed_overlay import staging
    root, exchange = Path(sys.argv[1]), sys.argv[2] == "exchange"
    old, new = eval(sys.argv[3])
    if not exchange:
        staging._exchange = lambda first, second: False
    seen = 0
    def count(event, args):
        global seen
        if event == "open" or event.startswith(("os.", "shutil.", "tempfile.", "ctypes.")):
            seen += 1
            if seen == at:
                os.kill(os.getpid(), signal.SIGKILL)
    status, at = -1, 0
    while status:
        at += 1
        out = root / f"{at:03}" / "tree"
        staging.stage_tree(old, out)
        child = os.fork()
        if not child:
            sys.addaudithook(count)
            staging.stage_tree(new, out, replace=True)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        assert status in (0, signal.SIGKILL), status
"""


def read_tree(root: Path) -> dict[str, bytes]:
    places = [place for place in root.rglob("*") if place.is_file()]
    return {place.relative_to(root).as_posix(): place.read_bytes() for place in places}


def names_in(folder: Path) -> list[str]:
    return [place.name for place in folder.iterdir()]


def code_of(files: dict[str, bytes], out: Path, *, replace: bool = True) -> str:
    with pytest.raises(ApplyError) as caught:
        stage_tree(files, out, replace=replace)
    return caught.value.problems[0].code


@pytest.fixture
def out(tmp_path: Path) -> Path:
    out = tmp_path / "tree"
    assert stage_tree(OLD, out)
    return out


def test_a_tree_is_replaced_whole_and_nothing_is_left_beside_it(out: Path) -> None:
    assert stage_tree(NEW, out, replace=True)
    assert read_tree(out) == NEW
    assert names_in(out.parent) == ["tree"]


def test_a_second_run_changes_nothing(out: Path) -> None:
    before = out.stat()
    assert not stage_tree(OLD, out)
    assert (out.stat().st_ino, out.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_an_extra_file_is_a_difference(out: Path) -> None:
    (out / "extra").write_bytes(b"")
    assert stage_tree(OLD, out, replace=True)
    assert read_tree(out) == OLD


def test_a_used_folder_is_kept_unless_told(out: Path) -> None:
    assert code_of(NEW, out, replace=False) == "E522"
    assert read_tree(out) == OLD


@pytest.mark.parametrize(
    "path", ["/etc/x", "../x", "a/../../x", ".git/hooks/x", "a/.GIT/x", "a//b", "git~1/x", "C:/x"]
)
def test_unsafe_paths_are_refused_before_anything_is_written(out: Path, path: str) -> None:
    assert code_of({**NEW, path: b"x"}, out) == "E520"
    assert read_tree(out) == OLD
    assert names_in(out.parent) == ["tree"]


def test_a_path_is_not_both_file_and_folder(out: Path) -> None:
    assert code_of({"a": b"", "a/b": b""}, out) == "E520"


def test_a_linked_place_is_refused(out: Path) -> None:
    link = out.parent / "link"
    link.symlink_to(out)
    assert code_of(NEW, link) == "E521"
    assert read_tree(out) == OLD


def test_nothing_is_written_through_a_linked_parent(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "root/megatron").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ApplyError) as caught:
        write_files(tmp_path / "root", {"megatron/x.py": b"x"})
    assert caught.value.problems[0].code == "E521"
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_nothing_is_written_through_a_linked_file(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root/x.py").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError):
        write_files(tmp_path / "root", {"x.py": b"x"})
    assert not (tmp_path / "elsewhere").exists()


def test_a_full_disk_leaves_the_old_tree(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(staging, "_sync", refuse)
    with pytest.raises(OSError, match="No space"):
        stage_tree(NEW, out, replace=True)
    assert read_tree(out) == OLD
    assert names_in(out.parent) == ["tree"]


@pytest.mark.parametrize("swap", ["exchange", "renames"])
def test_a_run_killed_at_any_step_leaves_the_old_tree_or_the_new_one(
    tmp_path: Path, swap: str
) -> None:
    tools = str(Path(staging.__file__).parents[1])
    script = f"import sys; sys.path.insert(0, {tools!r})\n" + textwrap.dedent(KILLED_RUNS)
    command = [sys.executable, "-c", script, str(tmp_path), swap, repr((OLD, NEW))]
    run = subprocess.run(command, capture_output=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr.decode()
    ends: set[str] = set()
    for place in sorted(tmp_path.iterdir()):
        out = place / "tree"
        if out.exists():
            tree = read_tree(out)
            assert tree in (OLD, NEW), place.name
            ends.add("new" if tree == NEW else "old")
        else:
            ends.add("absent")
        # A later run, even one that fails on purpose, first finishes what was begun.
        assert code_of({"x": b""}, out, replace=False) == "E522"
        assert read_tree(out) in (OLD, NEW), place.name
        assert names_in(place) == ["tree"]
    assert len(list(tmp_path.iterdir())) > 30
    assert ends == ({"old", "new"} if swap == "exchange" else {"old", "new", "absent"})
