"""One small world for a module, and environments to install into."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.small_build import World, make_world

Install = Callable[..., Path]


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
