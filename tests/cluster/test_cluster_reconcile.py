"""`reconcile`: from any known state to a build and back, and never over what nobody knows."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from builders import CORE, commit_files, mount_tiny, run_git
from cluster.environments import site_of
from cluster.small_build import MLP, World, write_overlays

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture(scope="module")
def dist(small_world: World) -> Path:
    return small_world.build(small_world.folder / "dist")[0]


@pytest.fixture(scope="module")
def older(small_world: World) -> Path:
    write_overlays(small_world.overlays, value="three")
    path = small_world.build(small_world.folder / "older")[0]
    write_overlays(small_world.overlays)
    return path


@pytest.fixture
def pristine(small_world: World) -> Path:
    return small_world.upstream.links / small_world.upstream.release.wheels[0].filename


def snapshot(site: Path) -> dict[str, tuple[int, bytes]]:
    """Every file with its time, but for what reconcile keeps for itself."""
    return {
        str(p.relative_to(site)): (p.stat().st_mtime_ns, p.read_bytes())
        for p in site.rglob("*")
        if p.is_file() and ".mindspeed-overlay" not in p.parts
    }


def make_repository(folder: Path, text: bytes) -> Path:
    """A fork of Megatron whose history holds a local change, and a newer commit."""
    folder.mkdir()
    run_git(folder, "init", "-q", "-b", "main")
    commit_files(folder, {MLP: text, "megatron/core/ours.py": b"local = True\n"})
    commit_files(folder, {MLP: b"newer = True\n"})
    return folder


CHANGE = CORE[MLP] + b"# ported by hand\n"


@pytest.mark.parametrize("state", ["absent", "pristine", "build", "patched"])
def test_a_known_state_becomes_the_build_and_comes_back_exactly(
    small_world: World,
    dist: Path,
    older: Path,
    pristine: Path,
    install: Callable[..., Path],
    tmp_path: Path,
    state: str,
) -> None:
    before = {"absent": (), "build": (older,)}.get(state, (pristine,))
    python = install(*before)
    site = site_of(python)
    words: tuple[object, ...] = ("--python", python)
    if state == "patched":
        (site / MLP).write_bytes(CHANGE)
        (site / "megatron/core/ours.py").write_text("local = True\n")
        words += ("--explain", make_repository(tmp_path / "fork", CHANGE))
    (site / "neighbour.py").write_text("kept = True\n")
    (site / "megatron/elsewhere").mkdir(parents=True)
    (site / "megatron/elsewhere/__init__.py").write_text("")
    subprocess.run([python, "-m", "compileall", "-q", site], check=True)
    old = snapshot(site)
    done = small_world.call("reconcile", dist, *words)
    assert f"was {state}" in done.out
    lock = dist.with_name("build.lock.json")
    small_world.call("verify", "--installed", "--python", python, "--lock", lock)
    assert "as it was" in small_world.call("reconcile", dist, "--python", python).out
    small_world.call("reconcile", "--back", "--python", python)
    assert snapshot(site) == old
    again = small_world.call("reconcile", "--back", "--python", python, check=False)
    assert again.code == 9
    assert "E932" in again.err


def test_what_nothing_explains_is_listed_and_nothing_changes(
    small_world: World, dist: Path, pristine: Path, install: Callable[..., Path], tmp_path: Path
) -> None:
    python = install(pristine)
    site = site_of(python)
    (site / MLP).write_bytes(CHANGE)
    (site / "megatron/core/secret.py").write_text("key = 1\n")
    old = snapshot(site)
    fork = make_repository(tmp_path / "fork", CHANGE)
    for words, named in (
        ((), [MLP, "secret.py"]),
        (("--explain", fork), ["secret.py"]),
    ):
        done = small_world.call("reconcile", dist, "--python", python, *words, check=False)
        assert done.code == 9
        assert done.err.count("E931") >= len(named)
        assert all(name in done.err for name in named)
        assert ("ported" in done.err or MLP in done.err) == (not words)
        assert snapshot(site) == old


def test_repaired_records_do_not_make_a_changed_copy_pristine(
    small_world: World, dist: Path, pristine: Path, install: Callable[..., Path]
) -> None:
    from builders import record_hash

    python = install(pristine)
    site = site_of(python)
    (site / MLP).write_bytes(CHANGE)
    record = next(site.glob("megatron_core-*.dist-info")) / "RECORD"
    lines = [
        f"{MLP},{record_hash(CHANGE)},{len(CHANGE)}" if line.startswith(f"{MLP},") else line
        for line in record.read_text().splitlines()
    ]
    record.write_text("\n".join(lines) + "\n")
    done = small_world.call("reconcile", dist, "--python", python, check=False)
    assert done.code == 9
    assert MLP in done.err


def test_another_mindspeed_is_not_overwritten(
    small_world: World, dist: Path, install: Callable[..., Path]
) -> None:
    site = site_of(install())
    (site / "mindspeed").mkdir()
    (site / "mindspeed/__init__.py").write_text("theirs = True\n")
    old = snapshot(site)
    done = small_world.call("reconcile", dist, "--site", site, check=False)
    assert done.code == 9
    assert "mindspeed/__init__.py" in done.err
    assert snapshot(site) == old


def test_going_back_refuses_to_lose_later_changes(
    small_world: World, dist: Path, pristine: Path, install: Callable[..., Path]
) -> None:
    site = site_of(install(pristine))
    small_world.call("reconcile", dist, "--site", site)
    (site / MLP).write_text("debugging = True\n")
    done = small_world.call("reconcile", "--back", "--site", site, check=False)
    assert done.code == 9
    assert MLP in done.err
    assert (site / MLP).read_text() == "debugging = True\n"


KILLED = """
import os, shutil, signal, sys
from pathlib import Path
from mindspeed_overlay.cluster.reconcile import reconcile
from mindspeed_overlay.pins import load_pins
root, first, wheel, pins = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
data, pins = wheel.read_bytes(), load_pins(Path(pins))
step, status = 0, -1
while status:
    step += 1
    site = root / f"{step:03}"
    shutil.copytree(first, site)
    child = os.fork()
    if not child:
        seen = 0
        def hook(event, args):
            global seen
            flags = args[2] if event == "open" and isinstance(args[2], int) else 0
            moves = event in ("os.rename", "os.mkdir", "os.remove", "os.rmdir")
            if flags & (os.O_WRONLY | os.O_RDWR) or moves:
                seen += 1
                if seen == step:
                    os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(hook)
        reconcile(site, data, pins)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL), status
"""


def test_a_run_killed_at_any_step_is_finished_by_the_next_and_still_goes_back(
    small_world: World, dist: Path, pristine: Path, install: Callable[..., Path], tmp_path: Path
) -> None:
    first = site_of(install(pristine))
    old = {path: data for path, (_, data) in snapshot(first).items()}
    command = [sys.executable, "-c", KILLED, tmp_path / "runs", first, dist, small_world.pins]
    done = subprocess.run(
        list(map(str, command)),
        env={**os.environ, "PYTHONPATH": str(TOOLS)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    places = sorted((tmp_path / "runs").iterdir())
    assert len(places) > 20
    wanted: dict[str, bytes] | None = None
    known = set()
    for place in reversed(places):
        begun = (place / ".mindspeed-overlay/journal.json").exists()
        left = (str(p.relative_to(place)) for p in place.rglob("*") if p.is_file())
        state = frozenset(p for p in left if begun or not p.startswith(".mindspeed-overlay"))
        if (begun, state) in known:  # as after another kill, for all that the next run reads
            continue
        known.add((begun, state))
        small_world.call("reconcile", dist, "--site", place)
        new = {path: data for path, (_, data) in snapshot(place).items()}
        wanted = wanted or new
        assert new == wanted, place.name
        small_world.call("reconcile", "--back", "--site", place)
        assert {path: data for path, (_, data) in snapshot(place).items()} == old, place.name
    assert len(known) > 8


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    with mount_tiny(tmp_path / "tiny", "256k") as folder:
        yield folder


def test_a_full_disk_leaves_the_old_state(
    small_world: World, dist: Path, pristine: Path, install: Callable[..., Path], tiny_disk: Path
) -> None:
    site = tiny_disk / "site"
    shutil.copytree(
        site_of(install(pristine)), site, ignore=lambda _, names: {n for n in names if "_virt" in n}
    )
    old = snapshot(site)
    (tiny_disk / "ballast").write_bytes(b"x" * (os.statvfs(tiny_disk).f_bavail - 4) * 4096)
    done = small_world.call("reconcile", dist, "--site", site, check=False)
    assert done.code == 7
    assert "E716" in done.err
    assert snapshot(site) == old
