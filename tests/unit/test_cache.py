"""The cache: entries by content, whole or not at all."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from builders import mount_tiny
from mindspeed_overlay.errors import MissingError, SourceError
from mindspeed_overlay.source.cache import Cache, find_cache_dir
from mindspeed_overlay.tree import sha256

DATA = b"a wheel" * 1000
HASH = sha256(DATA)


def serve(data: bytes, calls: list[Path] | None = None) -> Callable[[Path], Path]:
    def fetch(folder: Path) -> Path:
        if calls is not None:
            calls.append(folder)
        (folder / "download").write_bytes(data)
        return folder / "download"

    return fetch


def leftovers(cache: Cache) -> list[Path]:
    return [*(cache.root / "tmp").iterdir(), *(cache.root / "sha256").rglob("*")]


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    (tmp_path / "cache" / "sha256").mkdir(parents=True)
    return Cache(tmp_path / "cache")


def test_the_folder_is_the_given_one_else_the_variable_else_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINDSPEED_OVERLAY_CACHE", str(tmp_path / "variable"))
    assert find_cache_dir(tmp_path / "given") == tmp_path / "given"
    assert find_cache_dir() == tmp_path / "variable"
    monkeypatch.delenv("MINDSPEED_OVERLAY_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert find_cache_dir() == tmp_path / "xdg" / "mindspeed-overlay"


def test_a_file_is_fetched_once(cache: Cache) -> None:
    calls: list[Path] = []
    first = cache.get(HASH, "a.whl", serve(DATA, calls))
    assert cache.get(HASH, "a.whl", serve(DATA, calls)) == first == cache.find(HASH, "a.whl")
    assert (first.name, first.read_bytes(), len(calls)) == ("a.whl", DATA, 1)
    assert not list((cache.root / "tmp").iterdir())


def test_an_entry_that_has_rotted_is_fetched_anew(cache: Cache) -> None:
    path = cache.get(HASH, "a.whl", serve(DATA))
    path.write_bytes(DATA[:-1])
    assert cache.find(HASH, "a.whl") is None
    assert cache.get(HASH, "a.whl", serve(DATA)).read_bytes() == DATA


def test_bytes_of_another_hash_are_refused_and_not_kept(cache: Cache) -> None:
    with pytest.raises(SourceError, match=f"E311.*a.whl has SHA-256 .*pinned is {HASH}"):
        cache.get(HASH, "a.whl", serve(b"other"))
    assert leftovers(cache) == []


def test_an_interrupted_fetch_leaves_nothing(cache: Cache) -> None:
    def interrupted(folder: Path) -> Path:
        (folder / "part").write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.get(HASH, "a.whl", interrupted)
    assert leftovers(cache) == []
    assert cache.get(HASH, "a.whl", serve(DATA)).read_bytes() == DATA


def test_two_runs_share_one_download(cache: Cache) -> None:
    calls: list[Path] = []
    inside, go_on = threading.Event(), threading.Event()

    def slow(folder: Path) -> Path:
        inside.set()
        assert go_on.wait(30)
        return serve(DATA, calls)(folder)

    first = threading.Thread(target=lambda: cache.get(HASH, "a.whl", slow))
    second = threading.Thread(target=lambda: cache.get(HASH, "a.whl", serve(DATA, calls)))
    first.start()
    assert inside.wait(30)
    second.start()
    go_on.set()
    first.join(30)
    second.join(30)
    assert len(calls) == 1


def test_what_a_killed_run_left_is_swept_a_day_later(cache: Cache) -> None:
    old, new = cache.root / "tmp" / "old", cache.root / "tmp" / "new"
    old.mkdir(parents=True)
    new.mkdir()
    (old / "part").write_bytes(b"half")
    os.utime(old, (1, 1))
    cache.get(HASH, "a.whl", serve(DATA))
    assert list((cache.root / "tmp").iterdir()) == [new]


def test_a_sound_entry_is_used_where_nothing_can_be_written(cache: Cache) -> None:
    path = cache.get(HASH, "a.whl", serve(DATA))
    (cache.root / "locks" / f"{HASH}.lock").unlink(missing_ok=True)
    (cache.root / "locks").rmdir()
    (cache.root / "locks").write_bytes(b"in the way")
    assert cache.get(HASH, "a.whl", serve(DATA)) == path


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """Where it cannot be mounted, see the test below."""
    with mount_tiny(tmp_path / "tiny", "64k") as folder:
        yield folder


def test_a_full_disk_is_named_and_leaves_nothing(tiny_disk: Path) -> None:
    cache = Cache(tiny_disk / "cache")
    large = os.urandom(200_000)
    with pytest.raises(MissingError, match=r"E803.*No space left(.|\n)*MINDSPEED_OVERLAY_CACHE"):
        cache.get(sha256(large), "a.whl", serve(large))
    assert not list((cache.root / "tmp").iterdir())
    assert not (cache.root / "sha256").exists()
    assert cache.get(HASH, "a.whl", serve(DATA)).read_bytes() == DATA


def test_a_disk_that_refuses_the_write_is_named(cache: Cache) -> None:
    def full(folder: Path) -> Path:
        with Path("/dev/full").open("wb") as file:
            file.write(DATA)
        return folder

    with pytest.raises(MissingError, match=r"E803.*No space left"):
        cache.get(HASH, "a.whl", full)
    assert leftovers(cache) == []
