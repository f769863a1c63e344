"""Build the wheel, against `pip wheel` on the unmodified sdist; and build with nothing to do.

    python benchmarks/build.py

Ours starts with cached downloads and no finished wheel. The peer gets a freshly unpacked sdist and
an environment with its build requirements. Medians of the wall time of runs that take turns.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from mindspeed_overlay.data import default_pins
from mindspeed_overlay.pins import load_pins
from mindspeed_overlay.source import open_source
from mindspeed_overlay.source.cache import ENV, find_cache_dir

ROUNDS = 5
LIMIT_RATIO = 0.25
LIMIT_NOTHING_S = 0.5


def time_command(command: list[str], **kwargs: object) -> float:
    """Wall seconds of one run; the run must succeed."""
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, **kwargs)  # type: ignore[call-overload]
    return time.perf_counter() - start


def prepare_peer(folder: Path, version: str) -> tuple[Path, Path]:
    """The Python of an environment that can build the sdist, and the sdist."""
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    python = folder / "venv/bin/python"
    needs = ["setuptools", "wheel", "pybind11", "packaging"]
    subprocess.run([str(python), "-m", "pip", "install", "-q", *needs], check=True)
    words = ["download", "-q", "--no-deps", "--no-build-isolation", "--no-binary", ":all:"]
    where = ["-d", str(folder), f"megatron-core=={version}"]
    command = [str(python), "-m", "pip", *words, *where]
    subprocess.run(command, check=True, env=peer_environment(python))
    return python, next(folder.glob("*.tar.gz"))


def time_peer(python: Path, sdist: Path, folder: Path) -> float:
    """One `pip wheel` of a fresh tree; unpacking isn't counted."""
    with tempfile.TemporaryDirectory(dir=folder) as fresh:
        with tarfile.open(sdist) as archive:
            archive.extractall(fresh, filter="data")
        tree = next(Path(fresh).iterdir())
        words = [
            "wheel",
            "-q",
            "--no-deps",
            "--no-build-isolation",
            "-w",
            f"{fresh}/out",
            str(tree),
        ]
        return time_command([str(python), "-m", "pip", *words], env=peer_environment(python))


def peer_environment(python: Path) -> dict[str, str]:
    """The sdist's setup asks whatever `python3` is on PATH for pybind11's headers."""
    return {**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}"}


def time_ours(cache: Path, out: Path, *, fresh: bool) -> float:
    """One `build`; a fresh one has downloads and no finished wheel."""
    if fresh:
        shutil.rmtree(cache / "builds", ignore_errors=True)
        shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "mindspeed_overlay", "-q", "build", "--out", str(out)]
    return time_command(command, env={**os.environ, ENV: str(cache)})


def main() -> int:
    """Print the table; 1 when a limit is passed."""
    release = load_pins(default_pins()).default
    open_source(release)  # brings the downloads into the cache, where they are not there yet
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cache = folder / "cache"
        shutil.copytree(find_cache_dir() / "sha256", cache / "sha256")
        python, sdist = prepare_peer(folder, release.version)
        ours, theirs, nothing = [], [], []
        for _ in range(ROUNDS):
            ours.append(time_ours(cache, folder / "out", fresh=True))
            nothing.append(time_ours(cache, folder / "out", fresh=False))
            theirs.append(time_peer(python, sdist, folder))
    build, peer, idle = map(statistics.median, (ours, theirs, nothing))
    print("| what | seconds | limit |\n|---|---|---|")
    print(f"| build {release.tag}, cached downloads | {build:.2f} | |")
    print(f"| pip wheel on the sdist | {peer:.2f} | |")
    print(f"| ratio | {build / peer:.3f} | {LIMIT_RATIO} |")
    print(f"| build with nothing to do | {idle:.2f} | {LIMIT_NOTHING_S} |")
    return int(build / peer > LIMIT_RATIO or idle > LIMIT_NOTHING_S)


if __name__ == "__main__":
    sys.exit(main())
