"""One small world for a module, environments to install into, and two hosts."""

import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster.small_build import World, make_world
from cluster.two_hosts import TwoHosts, open_hosts

Install = Callable[..., Path]
TOOLS = Path(__file__).parents[2] / "tools"
ODD = "--without=fusions/matmul-add"


@pytest.fixture(scope="module")
def small_world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A release, an overlay set, pins and a stocked cache."""
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture
def install(tmp_path: Path) -> Install:
    """Make a new environment with these wheels in it; gives its Python."""

    def make(*wheels: Path, name: str = "venv") -> Path:
        folder = tmp_path / name
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        python = folder / "bin/python"
        uv = [sys.executable, "-m", "uv", "pip", "install", "-q", "--no-deps", "--offline"]
        for wheel in wheels:
            command = [*uv, "--link-mode", "copy", "--python", str(python), str(wheel)]
            subprocess.run(command, check=True)
        return python

    return make


@pytest.fixture(scope="module")
def pythons(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The Pythons of two environments: the build of the cluster, and an odd one."""
    made = []
    for name, words in (("build", []), ("odd", [ODD])):
        folder = tmp_path_factory.mktemp(name)
        tool = [sys.executable, "-m", "mindspeed_overlay", "-q", "build", "--out", str(folder)]
        environment = {**os.environ, "PYTHONPATH": str(TOOLS)}
        done = subprocess.run(
            [*tool, *words], check=True, capture_output=True, text=True, env=environment
        )
        venv = folder / "venv"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
        uv = [sys.executable, "-m", "uv", "pip", "install", "-q", "--no-deps", "--no-index"]
        python = venv / "bin/python"
        subprocess.run([*uv, "--python", str(python), done.stdout.strip()], check=True)
        site = next((venv / "lib").glob("python*/site-packages"))
        (site / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
        made.append(python)
    return made[0], made[1]


@pytest.fixture
def hosts() -> Iterator[TwoHosts]:
    with open_hosts() as made:
        yield made
