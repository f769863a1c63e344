"""`build` as a user runs it: reproducible, hermetic, atomic, and loud when something is wrong."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from builders import mount_tiny
from mindspeed_overlay.data import default_overlays, default_pins
from mindspeed_overlay.overlay import load_overlays
from mindspeed_overlay.pins import load_pins
from mindspeed_overlay.source.cache import find_cache_dir
from mindspeed_overlay.tree import sha256

pytestmark = pytest.mark.network

TOOLS = Path(__file__).parents[2] / "tools"
Done = subprocess.CompletedProcess[str]


def tool(*words: str, cwd: Path | None = None, **env: str) -> Done:
    environment = {**os.environ, "PYTHONPATH": str(TOOLS), **env}
    environment = {key: value for key, value in environment.items() if value != "-unset-"}
    command = [sys.executable, "-m", "mindspeed_overlay", *words]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=cwd, check=False
    )


@pytest.fixture(scope="module")
def downloads() -> Path:
    """The default release's downloads, brought once into the user's cache."""
    done = tool("apply", "/dev/null/x")
    assert done.returncode != 8, done.stderr
    return find_cache_dir() / "sha256"


@pytest.fixture
def cache(downloads: Path, tmp_path: Path) -> Path:
    """A cache of this test's own: downloads, and no finished wheel."""
    folder = tmp_path / "cache"
    shutil.copytree(downloads, folder / "sha256")
    return folder


def build(cache: Path, out: Path, *words: str, cwd: Path | None = None, **env: str) -> Path:
    done = tool(
        "build", "--out", str(out), *words, cwd=cwd, MINDSPEED_OVERLAY_CACHE=str(cache), **env
    )
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


def test_two_cold_builds_are_byte_identical(cache: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / "深" / "cache"
    shutil.copytree(cache, other)
    first = build(cache, tmp_path / "a", TZ="UTC", PYTHONHASHSEED="1", LANG="C")
    old = os.umask(0o077)
    try:
        second = build(
            other, tmp_path / "b c", TZ="Asia/Shanghai", PYTHONHASHSEED="2", LANG="zh_CN.UTF-8"
        )
    finally:
        os.umask(old)
    assert first.name == second.name
    assert first.read_bytes() == second.read_bytes()
    assert second.stat().st_mode & 0o777 == 0o644


def test_a_finished_build_is_used_again_and_a_rotten_one_is_not(
    cache: Path, tmp_path: Path
) -> None:
    first = build(cache, tmp_path / "a").read_bytes()
    words = ("build", "--out", str(tmp_path / "b"), "--json")
    assert json.loads(tool(*words, MINDSPEED_OVERLAY_CACHE=str(cache)).stdout)["reused"]
    finished = next((cache / "builds").iterdir())
    finished.write_bytes(finished.read_bytes()[:-1] + b"X")
    again = json.loads(tool(*words, MINDSPEED_OVERLAY_CACHE=str(cache)).stdout)
    assert not again["reused"]
    assert Path(again["wheel"]).read_bytes() == first
    rebuilt = tool(*words, "--rebuild", MINDSPEED_OVERLAY_CACHE=str(cache))
    assert not json.loads(rebuilt.stdout)["reused"]


def hostile_git_config(folder: Path) -> Path:
    config = folder / "gitconfig"
    config.write_text(
        "[core]\n\tautocrlf = true\n\thooksPath = /nonexistent\n[commit]\n\tgpgSign = true\n"
        "[diff]\n\tnoprefix = true\n[apply]\n\twhitespace = fix\n[init]\n\tdefaultBranch = x\n"
        "[user]\n\tuseConfigOnly = true\n"
    )
    return config


@pytest.mark.parametrize("command", ["build", "apply"])
def test_the_users_git_and_locale_change_nothing(cache: Path, tmp_path: Path, command: str) -> None:
    outer = tmp_path / "outer"
    outer.mkdir()
    subprocess.run(["git", "init", "-q", str(outer)], check=True)
    hostile = {
        "GIT_CONFIG_GLOBAL": str(hostile_git_config(tmp_path)),
        "GIT_DIR": str(outer / ".git"),
        "GIT_INDEX_FILE": str(outer / "index"),
        "GIT_WORK_TREE": str(outer),
        "LANG": "zh_CN.UTF-8",
        "HOME": "-unset-",
        "GIT_AUTHOR_NAME": "-unset-",
    }
    if command == "build":
        plain = build(cache, tmp_path / "plain")
        there = build(cache, outer / "dist", "--rebuild", cwd=outer, **hostile)
        assert there.read_bytes() == plain.read_bytes()
        return
    heads = []
    for folder, env in ((tmp_path / "plain", {}), (outer / "work", hostile)):
        done = tool("apply", str(folder), cwd=outer, MINDSPEED_OVERLAY_CACHE=str(cache), **env)
        assert done.returncode == 0, done.stderr
        status = ["git", "-C", str(folder), "status", "--porcelain"]
        assert subprocess.run(status, check=True, capture_output=True).stdout == b""
        revision = [
            "git",
            "-C",
            str(folder),
            "log",
            "--format=%H %(trailers:key=Overlay,valueonly)",
        ]
        heads.append(subprocess.run(revision, check=True, capture_output=True, text=True).stdout)
    assert heads[0] == heads[1]
    assert "fusions/fused-swiglu" in heads[0]
    assert not (outer / "index").exists()


def test_apply_refuses_a_folder_with_something_in_it(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine").write_text("precious")
    done = tool("apply", str(tmp_path / "full"), MINDSPEED_OVERLAY_CACHE=str(cache))
    assert done.returncode == 7
    assert "E704" in done.stderr
    assert (tmp_path / "full/mine").read_text() == "precious"


def test_two_builds_at_once_both_finish(cache: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(TOOLS), "MINDSPEED_OVERLAY_CACHE": str(cache)}
    command = [sys.executable, "-m", "mindspeed_overlay", "build", "--out", str(tmp_path / "out")]
    running = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    said = [process.communicate() for process in running]
    assert [process.returncode for process in running] == [0, 0], said
    assert said[0][0] == said[1][0]
    assert len(list((tmp_path / "out").glob("*.whl"))) == 1
    assert not list((tmp_path / "out").glob(".*"))


def spoil(overlays: Path) -> str:
    """Change one context line of a patch; returns the symbol its hunk belongs to."""
    tags = tuple(release.tag for release in load_pins(default_pins()).releases)
    overlay = load_overlays(overlays, tags=tags).get("fusions/fused-rmsnorm")
    since = overlay.patch_since("core_v0.16.1", tags)
    patch = overlay.folder / "patches" / since / "megatron.core.transformer.torch_norm.patch"
    lines = patch.read_text().splitlines(keepends=True)
    start = next(n for n, line in enumerate(lines) if line.startswith("@@"))
    symbol = lines[start].split("@@")[2].strip()
    at = next(
        n for n in range(start + 1, len(lines)) if lines[n].startswith(" ") and lines[n].strip()
    )
    lines[at] = lines[at].rstrip("\n") + "  # spoiled\n"
    patch.write_text("".join(lines))
    return symbol


def test_a_spoiled_patch_stops_build_and_check_and_loses_nothing(
    cache: Path, tmp_path: Path
) -> None:
    good = build(cache, tmp_path / "out")
    before = {path.name: sha256(path.read_bytes()) for path in good.parent.iterdir()}
    overlays = tmp_path / "overlays"
    shutil.copytree(default_overlays(), overlays)
    symbol = spoil(overlays)
    for words in (
        ("build", "--out", str(good.parent)),
        ("check", "--release", "core_v0.16.1", "--offline"),
    ):
        done = tool("--overlays", str(overlays), *words, MINDSPEED_OVERLAY_CACHE=str(cache))
        assert done.returncode == 5, done.stderr
        assert "fusions/fused-rmsnorm: hunk 1 of" in done.stderr
        assert symbol in done.stderr
        assert "mindspeed-overlay port fusions/fused-rmsnorm --to core_v0.16.1" in done.stderr
    assert {path.name: sha256(path.read_bytes()) for path in good.parent.iterdir()} == before


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    with mount_tiny(tmp_path / "tiny", "1m") as folder:
        yield folder


def test_a_full_disk_is_an_error_that_leaves_the_old_wheel(
    cache: Path, tmp_path: Path, tiny_disk: Path
) -> None:
    wheel = build(cache, tmp_path / "out", "--without", "fusions/matmul-add")
    old = tiny_disk / wheel.name
    old.write_bytes(b"old wheel")
    done = tool("build", "--out", str(tiny_disk), "--json", MINDSPEED_OVERLAY_CACHE=str(cache))
    assert done.returncode == 7
    assert json.loads(done.stdout)["problems"][0]["code"] == "E703"
    assert [path.name for path in tiny_disk.iterdir()] == [wheel.name]
    assert old.read_bytes() == b"old wheel"


KILL_LOOP = """
import os, re, shutil, signal, sys
from pathlib import Path
import mindspeed_overlay.cli
known = set()
out, cache, reference = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]).read_bytes()
sys.argv = ["mindspeed-overlay", "build", "--out", str(out)]

def build(kill_at=0):
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    seen = 0
    def hook(event, args):
        nonlocal seen
        flags = args[2] if event == "open" and isinstance(args[2], int) else 0
        writes = flags & (os.O_WRONLY | os.O_RDWR)
        moves = event in ("os.rename", "os.mkdir", "os.remove", "os.chmod", "os.rmdir")
        if (writes or moves) and str(args[0]).startswith((str(out), str(cache))):
            seen += 1
            if seen == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    mindspeed_overlay.cli.main()

try:
    mindspeed_overlay.cli.main()  # what is parsed here is parsed for every fork
except SystemExit:
    pass
for step in range(1, 200):
    shutil.rmtree(cache / "builds", ignore_errors=True)
    shutil.rmtree(out, ignore_errors=True)
    code = build(step)
    wheels = list(out.glob("*.whl")) if out.exists() else []
    assert all(wheel.read_bytes() == reference for wheel in wheels), step
    if code == 0:
        break
    assert code == -signal.SIGKILL, (step, code)
    left = [p for root in (out, cache / "builds") for p in root.rglob("*")]
    state = frozenset((re.sub("staging-[^/]*", "", str(p)), p.lstat().st_size) for p in left)
    if state in known:  # the same files as after an earlier kill
        continue
    known.add(state)
    assert build() == 0, step
    assert next(out.glob("*.whl")).read_bytes() == reference, step
    left = [(str(p), p.stat().st_mode) for q in out.glob(".*") for p in (q, *q.rglob("*"))]
    assert not left, (step, "leftovers of a killed run", left)
print(step, "steps")
"""


def test_a_build_killed_at_any_step_leaves_old_or_new_and_the_next_one_works(
    cache: Path, tmp_path: Path
) -> None:
    """Every write, rename and folder of the run is a step; the kill comes just before it."""
    reference = build(cache, tmp_path / "reference")
    shutil.rmtree(cache / "builds")
    environment = {**os.environ, "PYTHONPATH": str(TOOLS), "MINDSPEED_OVERLAY_CACHE": str(cache)}
    places = [str(tmp_path / "out"), str(cache), str(reference)]
    done = subprocess.run(
        [sys.executable, "-c", KILL_LOOP, *places],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    steps = int(done.stdout.split()[-2])
    assert steps > 5
