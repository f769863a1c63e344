"""The real release, from `build --matrix` to an installed, verified Megatron."""

import hashlib
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from cluster.environments import NO_NETWORK, has_namespaces, make_environment, site_of

pytestmark = pytest.mark.network
TOOLS = Path(__file__).parents[2] / "tools"
HERE = f"cp{sys.version_info[0]}{sys.version_info[1]}"
MATRIX = """
python = ["3.10", "3.11"]
platform = ["linux_aarch64", "linux_x86_64"]
"""


def tool(*words: object) -> str:
    """Run the tool; what it printed."""
    environment = {**os.environ, "PYTHONPATH": str(TOOLS)}
    command = [sys.executable, "-m", "mindspeed_overlay", "-q", *map(str, words)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, cwd="/"
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run(*words: object) -> str:
    """Run a command without the user's own settings of pip; what it printed."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "PYTHON"))}
    done = subprocess.run(
        list(map(str, words)),
        capture_output=True,
        text=True,
        check=False,
        env={**clean, "PIP_CONFIG_FILE": os.devnull},
        cwd="/",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("build")
    (folder / "matrix.toml").write_text(MATRIX)
    said = tool("build", "--matrix", folder / "matrix.toml", "--out", folder / "dist")
    return [Path(line) for line in said.splitlines()]


def test_four_targets_are_built_from_one_plan(wheels: list[Path]) -> None:
    assert len(wheels) == 4
    lock = json.loads(wheels[0].with_name("build.lock.json").read_text())
    assert {(entry["python"], entry["platform"]) for entry in lock["wheels"]} == {
        (python, platform)
        for python in ("3.10", "3.11")
        for platform in ("linux_aarch64", "linux_x86_64")
    }


def test_the_lock_gives_the_wheels_byte_for_byte(wheels: list[Path], tmp_path: Path) -> None:
    lock = wheels[0].with_name("build.lock.json")
    said = tool("build", "--locked", lock, "--rebuild", "--out", tmp_path)
    again = [Path(line) for line in said.splitlines()]
    assert [path.name for path in again] == [path.name for path in wheels]
    for ours, theirs in zip(again, wheels, strict=True):
        assert ours.read_bytes() == theirs.read_bytes()
    assert (tmp_path / "build.lock.json").read_bytes() == lock.read_bytes()


@pytest.mark.skipif(HERE not in ("cp310", "cp311"), reason="no wheel of the matrix is for this")
@pytest.mark.parametrize("client", ["pip", "uv"])
def test_an_index_gives_a_new_environment_a_verified_build(
    wheels: list[Path], tmp_path: Path, client: str
) -> None:
    constraints = tool("publish", *wheels, "--index", tmp_path / "index").strip()
    python = make_environment(tmp_path / "venv")
    pip = [python, "-m", "pip", "install", "--no-cache-dir", "--disable-pip-version-check"]
    uv = [sys.executable, "-m", "uv", "--no-config", "pip", "install", "--no-cache"]
    command = pip if client == "pip" else [*uv, "--python", python]
    index = f"file://{tmp_path}/index/simple"
    run(*command, "--index-url", index, "--no-deps", "-r", constraints)
    lock = wheels[0].with_name("build.lock.json")
    tool("verify", "--installed", "--python", python, "--lock", lock)
    assert "ok: 1 ranks run build" in run(python, "-m", "mindspeed.verify", "--lock", lock)


@pytest.mark.skipif(HERE not in ("cp310", "cp311"), reason="no wheel of the matrix is for this")
@pytest.mark.skipif(not has_namespaces(), reason="unshare --net needs root")
def test_a_bundle_installs_without_a_network_and_undoes_that(
    wheels: list[Path], tmp_path: Path
) -> None:
    told = tool("bundle", *wheels, "--out", tmp_path / "megatron.tar").strip()
    with tarfile.open(tmp_path / "megatron.tar") as archive:
        archive.extractall(tmp_path / "site", filter="data")
    (unpacked,) = (tmp_path / "site").iterdir()
    assert hashlib.sha256((unpacked / "SHA256SUMS").read_bytes()).hexdigest() == told
    python = make_environment(tmp_path / "venv")
    before = set(site_of(python).iterdir())
    run(*NO_NETWORK, python, unpacked / "install.py", "--sha256", told)
    lock = wheels[0].with_name("build.lock.json")
    tool("verify", "--installed", "--python", python, "--lock", lock)
    run(*NO_NETWORK, python, unpacked / "install.py", "--undo")
    assert set(site_of(python).iterdir()) == before
