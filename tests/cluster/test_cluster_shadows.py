"""Nodes on which the right wheel is installed and another Megatron would run all the same."""

import importlib.util
import os
import py_compile
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.environments import site_of
from cluster.small_build import MLP, World, write_overlays


@pytest.fixture
def dist(small_world: World) -> Path:
    out = small_world.folder / "dist"
    return small_world.build(out)[0] if not out.exists() else sorted(out.glob("*.whl"))[0]


@pytest.fixture
def python(install: Callable[..., Path], dist: Path) -> Path:
    return install(dist)


def make_checkout(folder: Path) -> Path:
    core = folder / "megatron/core"
    core.mkdir(parents=True)
    (core / "__init__.py").write_text("")
    return folder


def verify(world: World, python: Path) -> str:
    done = world.call("verify", "--installed", "--python", python, check=False)
    assert done.code == 9
    return done.err


def start_check(python: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """`python -m mindspeed.verify` of one rank, as a job script would call it."""
    command = [str(python), "-m", "mindspeed.verify"]
    clean = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={**clean, **environment},
        cwd="/",
    )


def test_a_sound_node_passes_both_checks(small_world: World, python: Path) -> None:
    small_world.call("verify", "--installed", "--python", python)
    done = start_check(python)
    assert done.returncode == 0, done.stderr
    assert "ok: 1 ranks run build" in done.stdout


def test_a_megatron_on_pythonpath_is_found_by_both_checks(
    small_world: World, python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = make_checkout(tmp_path / "checkout")
    monkeypatch.setenv("PYTHONPATH", str(checkout))
    said = verify(small_world, python)
    assert f"megatron.core is imported from {checkout}/megatron/core" in said
    assert f"PYTHONPATH is {checkout}" in said
    done = start_check(python, PYTHONPATH=str(checkout))
    assert done.returncode == 9
    assert f"imports megatron.core from {checkout}/megatron/core" in done.stderr


def test_a_path_file_that_leads_to_another_megatron_is_found(
    small_world: World, python: Path, tmp_path: Path
) -> None:
    checkout = make_checkout(tmp_path / "checkout")
    (site_of(python) / "aaa.pth").write_text(f"{checkout}\n")
    assert "aaa.pth" in verify(small_world, python)


@pytest.mark.network
@pytest.mark.parametrize("name", ["megatron-core", "megatron-fork"])
def test_an_editable_install_is_found(
    small_world: World, python: Path, tmp_path: Path, name: str
) -> None:
    """Under our name pip takes the build away; under another both are there."""
    checkout = make_checkout(tmp_path / "checkout")
    (checkout / "pyproject.toml").write_text(
        f'[project]\nname = "{name}"\nversion = "0.1"\n\n[build-system]\n'
        'requires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n\n'
        '[tool.setuptools.packages.find]\ninclude = ["megatron.core"]\n'
    )
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps"]
    subprocess.run([*pip, "-e", str(checkout)], check=True)
    said = verify(small_world, python)
    assert f"__editable__.{name.replace('-', '_')}-0.1.pth: a .pth file that changes" in said
    gone = name == "megatron-core"
    assert ("an editable install, whose files are elsewhere" in said) == gone
    assert ("this is not a build of this tool" in said) == gone


def test_bytecode_of_another_build_is_found_though_time_and_size_agree(
    small_world: World, install: Callable[..., Path], dist: Path
) -> None:
    """An image builder gave every file one time, and the two builds' files are of one size."""
    write_overlays(small_world.overlays, value="ten")
    other = small_world.build(small_world.folder / "other")[0]
    write_overlays(small_world.overlays)
    python, second = install(dist), install(other, name="other")
    source = site_of(python) / MLP
    for folder in (site_of(python), site_of(second)):
        os.utime(folder / MLP, (1000, 1000))
    compiled = Path(importlib.util.cache_from_source(str(source)))
    py_compile.compile(str(site_of(second) / MLP), cfile=str(compiled))
    run = f"import sys; sys.path.insert(0, {str(site_of(python))!r}); "
    run += "from megatron.core.transformer.mlp import MLP; print(MLP.answer)"
    ran = subprocess.run([python, "-c", run], capture_output=True, text=True, check=True)
    assert ran.stdout == "ten\n"
    assert "bytecode of another file" in verify(small_world, python)


def test_bytecode_that_is_never_checked_is_found_by_both_checks(
    small_world: World, python: Path
) -> None:
    source = site_of(python) / MLP
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(source), invalidation_mode=mode)
    assert "never checked" in verify(small_world, python)
    done = start_check(python)
    assert done.returncode == 9
    assert f"bytecode of {MLP}" in done.stderr


def test_a_changed_file_stops_the_job(small_world: World, python: Path) -> None:
    (site_of(python) / MLP).write_text("answer = 'three'\n")
    done = start_check(python)
    assert done.returncode == 9
    assert f"files: not as built: {MLP}" in done.stderr


def test_the_job_must_run_the_locked_build(
    small_world: World, python: Path, dist: Path, tmp_path: Path
) -> None:
    lock = dist.with_name("build.lock.json")
    command = [str(python), "-m", "mindspeed.verify", "--lock"]
    assert subprocess.run([*command, str(lock)], cwd="/", check=False).returncode == 0
    other = tmp_path / "other.json"
    other.write_text(lock.read_text().replace('"digest": "', '"digest": "0'))
    done = subprocess.run([*command, str(other)], cwd="/", capture_output=True, check=False)
    assert done.returncode == 9
