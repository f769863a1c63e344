"""`build --matrix` and `--locked`: many targets from one plan, and the same bytes again."""

import json
import shutil
from pathlib import Path

import pytest

from cluster.small_build import OTHER_TARGET, PLATFORM, PYTHON, World, make_world, write_overlays
from mindspeed_overlay.errors import UsageError
from mindspeed_overlay.lock import read_lock
from mindspeed_overlay.tree import sha256


@pytest.fixture
def world(tmp_path: Path) -> World:
    return make_world(tmp_path / "world")


def hashes(paths: list[Path]) -> dict[str, str]:
    return {path.name: sha256(path.read_bytes()) for path in paths}


def test_a_matrix_builds_every_target_and_lists_each(world: World, tmp_path: Path) -> None:
    matrix = tmp_path / "matrix.toml"
    matrix.write_text(
        f'python = ["{PYTHON}"]\nplatform = ["{PLATFORM}"]\n\n'
        '[[target]]\npython = "3.12"\nplatform = "linux_aarch64"\n'
    )
    paths = world.build(tmp_path / "a", "--matrix", matrix)
    lock = read_lock(tmp_path / "a/build.lock.json")
    assert {entry.wheel: entry.wheel_sha256 for entry in lock.wheels} == hashes(paths)
    assert [(e.python, e.platform) for e in lock.wheels] == [(PYTHON, PLATFORM), OTHER_TARGET]
    assert {entry.upstream_sha256 for entry in lock.wheels} < {
        wheel.sha256 for wheel in world.upstream.release.wheels
    }
    for path in paths:
        world.call("verify", path, "--lock", tmp_path / "a/build.lock.json")


def test_targets_built_together_and_alone_are_the_same_bytes(world: World, tmp_path: Path) -> None:
    together = hashes(world.build(tmp_path / "a"))
    assert len(together) == 4
    alone: dict[str, str] = {}
    for python, platform in ((PYTHON, PLATFORM), OTHER_TARGET):
        shutil.rmtree(world.cache / "builds")
        words = ("--python", python, "--platform", platform)
        alone |= hashes(world.build(tmp_path / python, *words))
    assert alone.items() <= together.items()
    assert len(alone) == 2


@pytest.mark.parametrize("rebuild", [(), ("--rebuild",)])
def test_the_lock_gives_the_same_bytes_again(
    world: World, tmp_path: Path, rebuild: tuple[str, ...]
) -> None:
    first = hashes(world.build(tmp_path / "a"))
    lock = tmp_path / "a/build.lock.json"
    again = world.build(tmp_path / "b", "--locked", lock, *rebuild)
    assert hashes(again) == first
    assert (tmp_path / "b/build.lock.json").read_bytes() == lock.read_bytes()


def test_a_lock_that_cannot_be_met_says_what_differs(world: World, tmp_path: Path) -> None:
    world.build(tmp_path / "a")
    lock = tmp_path / "a/build.lock.json"
    table = json.loads(lock.read_text())
    table["tool"] = "9.9"
    table["overlays"][0]["summary"] = "Other"
    lock.write_text(json.dumps(table))
    write_overlays(world.overlays, value="three")
    done = world.call("build", "--locked", lock, "--out", tmp_path / "b", check=False)
    assert done.code == 9
    assert "tool is '0.1.0' here, the lock has '9.9'" in done.err
    assert "base/small: summary is 'Answers' here, the lock has 'Other'" in done.err
    assert "base/small: digest is" in done.err
    assert "release" not in done.err
    assert not (tmp_path / "b").exists()


def test_a_lock_whose_hash_was_edited_is_refused_before_anything_is_written(
    world: World, tmp_path: Path
) -> None:
    world.build(tmp_path / "a")
    lock = tmp_path / "a/build.lock.json"
    table = json.loads(lock.read_text())
    table["wheels"][0]["wheel_sha256"] = "0" * 64
    lock.write_text(json.dumps(table))
    done = world.call("build", "--locked", lock, "--out", tmp_path / "b", check=False)
    assert done.code == 9
    assert "E912" in done.err
    assert f"locked {'0' * 64}" in done.err
    assert not (tmp_path / "b").exists()


def test_a_wheel_that_the_lock_does_not_name_is_not_authentic(world: World, tmp_path: Path) -> None:
    here = world.build(tmp_path / "a", "--python", PYTHON)[0]
    world.build(tmp_path / "b", "--python", "3.12", "--platform", "linux_aarch64")
    other = tmp_path / "b/build.lock.json"
    done = world.call("verify", here, "--lock", other, check=False)
    assert done.code == 9
    assert "is not in the lock" in done.err


@pytest.mark.parametrize(
    "text", ["", "python = [3]", "pythons = []", '[[target]]\npython = "3.1"', "not toml ["]
)
def test_a_malformed_matrix_is_refused(tmp_path: Path, text: str) -> None:
    from mindspeed_overlay.cluster.matrix import read_matrix

    (tmp_path / "matrix.toml").write_text(text)
    with pytest.raises(UsageError, match="E211"):
        read_matrix(tmp_path / "matrix.toml")
