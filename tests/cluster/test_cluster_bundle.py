"""`bundle`: verified before it installs, without a network, and undone exactly."""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from builders import record_hash, zip_bytes
from cluster.environments import NO_NETWORK, has_namespaces, make_environment, site_of
from cluster.small_build import MLP, World, make_world


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A key pair as openssl makes one."""
    private = tmp_path_factory.mktemp("keys") / "team.pem"
    public = private.with_suffix(".pub.pem")
    make_keys(private, public)
    return private, public


def make_keys(private: Path, public: Path) -> None:
    make = ["openssl", "genpkey", "-algorithm", "ed25519", "-out", str(private)]
    subprocess.run(make, check=True, capture_output=True)
    tell = ["openssl", "pkey", "-in", str(private), "-pubout", "-out", str(public)]
    subprocess.run(tell, check=True)


@pytest.fixture(scope="module")
def made(world: World, keys: tuple[Path, Path]) -> tuple[Path, str]:
    """The archive and the hash that its maker tells."""
    dist = world.build(world.folder / "dist")
    helper = make_dependency(world.folder)
    words = ("--dependency", helper, "--sign", keys[0])
    archive = world.folder / "bundle.tar"
    done = world.call("bundle", *dist, "--out", archive, *words)
    return archive, done.out.strip()


def make_dependency(folder: Path) -> Path:
    """A wheel of another project."""
    info = "helper_package-1.0.dist-info"
    files = {
        "helper.py": b"x = 1\n",
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: helper-package\nVersion: 1.0\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = "".join(f"{path},{record_hash(data)},{len(data)}\n" for path, data in files.items())
    files[f"{info}/RECORD"] = f"{rows}{info}/RECORD,,\n".encode()
    wheel = folder / "helper_package-1.0-py3-none-any.whl"
    wheel.write_bytes(zip_bytes(files.items()))
    return wheel


@pytest.fixture
def unpacked(made: tuple[Path, str], tmp_path: Path) -> Path:
    with tarfile.open(made[0]) as archive:
        archive.extractall(tmp_path / "site", filter="data")
    return next((tmp_path / "site").iterdir())


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_environment(tmp_path_factory.mktemp("venv") / "venv")


@pytest.fixture
def python(fresh: Path) -> Iterator[Path]:
    """An environment with pip; what a test leaves in it is removed."""
    site = site_of(fresh)
    before = set(snapshot(fresh))
    yield fresh
    for name in set(snapshot(fresh)) - before:
        (site / name).unlink()
    shutil.rmtree(fresh.parents[1] / "share", ignore_errors=True)


def snapshot(python: Path) -> dict[str, tuple[int, str]]:
    """Every file with its time and hash; pip's own bytecode comes and goes."""
    site = site_of(python)
    found = [p for p in site.rglob("*") if p.is_file() and "pip" not in p.relative_to(site).parts]
    return {
        str(p.relative_to(site)): (
            p.stat().st_mtime_ns,
            hashlib.sha256(p.read_bytes()).hexdigest(),
        )
        for p in found
    }


def run(python: Path, unpacked: Path, *words: object, offline: bool = False) -> tuple[int, str]:
    command = [python, unpacked / "install.py", *words]
    command = [*NO_NETWORK, *command] if offline else command
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_the_same_wheels_give_the_same_archive(
    world: World, made: tuple[Path, str], keys: tuple[Path, Path], tmp_path: Path
) -> None:
    dist = sorted((world.folder / "dist").glob("*.whl"), reverse=True)
    helper = world.folder / "helper_package-1.0-py3-none-any.whl"
    words = ("--dependency", helper, "--sign", keys[0], "--out", tmp_path / "again.tar")
    world.call("bundle", *dist, *words)
    assert (tmp_path / "again.tar").read_bytes() == made[0].read_bytes()
    with tarfile.open(made[0]) as archive:
        members = archive.getmembers()
    assert {(m.mode, m.mtime, m.uid, m.gid, m.uname) for m in members} == {
        (0o644, 315532800, 0, 0, "")
    }
    assert all(m.isfile() for m in members)


def test_the_first_line_of_the_script_checks_the_script_too(
    unpacked: Path, made: tuple[Path, str]
) -> None:
    line = (unpacked / "install.py").read_text().splitlines()[2].replace("HASH", made[1])
    assert subprocess.run(["bash", "-c", line], cwd=unpacked, check=False).returncode == 0
    with (unpacked / "install.py").open("a") as script:
        script.write("# changed\n")
    done = subprocess.run(["bash", "-c", line], cwd=unpacked, capture_output=True, check=False)
    assert done.returncode != 0


def test_it_installs_where_there_is_no_network_and_undoes_that(
    world: World, python: Path, unpacked: Path, made: tuple[Path, str], keys: tuple[Path, Path]
) -> None:
    if not has_namespaces():
        pytest.skip("a network namespace needs root: unshare --net")
    before = snapshot(python)
    code, said = run(python, unpacked, "--sha256", made[1], "--key", keys[1], offline=True)
    assert code == 0, said
    lock = world.folder / "dist/build.lock.json"
    world.call("verify", "--installed", "--python", python, "--lock", lock)
    imported = subprocess.run([python, "-c", "import helper; print(helper.x)"], check=False)
    assert imported.returncode == 0
    code, said = run(python, unpacked, "--undo", offline=True)
    assert code == 0, said
    assert snapshot(python) == before
    assert run(python, unpacked, "--undo")[0] == 1


def test_undo_brings_back_an_earlier_megatron_byte_for_byte(
    world: World, python: Path, unpacked: Path, made: tuple[Path, str]
) -> None:
    old = world.upstream.links / world.upstream.release.wheels[0].filename
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-index"]
    subprocess.run([*pip, str(old)], check=True)
    mine = site_of(python) / MLP
    mine.write_text(mine.read_text() + "# a local change\n")
    before = snapshot(python)
    code, said = run(python, unpacked, "--sha256", made[1], "--no-dependencies")
    assert code == 0, said
    assert "a local change" not in mine.read_text()
    assert run(python, unpacked, "--undo")[0] == 0
    assert snapshot(python) == before


def spoil(unpacked: Path, how: str) -> str:
    """Change the bundle; returns what the refusal must say."""
    wheel = next((unpacked / "wheels").glob("*.whl"))
    if how == "changed wheel":
        wheel.write_bytes(wheel.read_bytes() + b"x")
    elif how == "truncated wheel":
        wheel.write_bytes(wheel.read_bytes()[:1000])
    elif how == "missing wheel":
        wheel.unlink()
    elif how == "added file":
        (unpacked / "wheels/torch-9.9-py3-none-any.whl").write_bytes(b"")
    else:
        sums = unpacked / "SHA256SUMS"
        sums.write_bytes(sums.read_bytes().replace(b"a", b"b"))
        return "SHA256SUMS"
    return how.split()[0].replace("truncated", "changed")


@pytest.mark.parametrize(
    "how", ["changed wheel", "truncated wheel", "missing wheel", "added file", "forged sums"]
)
def test_a_bundle_that_was_changed_installs_nothing(
    python: Path, unpacked: Path, made: tuple[Path, str], keys: tuple[Path, Path], how: str
) -> None:
    before = snapshot(python)
    named = spoil(unpacked, how)
    for proof in (("--sha256", made[1]), ("--key", keys[1])):
        code, said = run(python, unpacked, *proof)
        assert code == 1
        assert f"refused: {named}" in said
    assert snapshot(python) == before


def test_nothing_is_installed_on_the_bundles_own_word(python: Path, unpacked: Path) -> None:
    code, said = run(python, unpacked)
    assert code == 1
    assert "from elsewhere" in said


def test_openssl_checks_a_key_where_cryptography_is_not_installed(
    unpacked: Path, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    blocked = tmp_path / "blocked/cryptography"
    blocked.mkdir(parents=True)
    (blocked / "__init__.py").write_text("raise ImportError\n")
    environment = {**os.environ, "PYTHONPATH": str(blocked.parent)}
    command = [sys.executable, str(unpacked / "install.py"), "--check-only", "--key"]
    good = subprocess.run([*command, str(keys[1])], env=environment, check=False)
    assert good.returncode == 0
    other = tmp_path / "other.pub.pem"
    make_keys(tmp_path / "other.pem", other)
    wrong = [*command, str(other)]
    assert subprocess.run(wrong, env=environment, capture_output=True, check=False).returncode == 1
