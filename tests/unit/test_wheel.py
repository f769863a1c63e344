"""The wheel: its records, its metadata, its bytes; and what verify says to every tampering."""

import io
import json
import re
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mindspeed_overlay.archive import store, write_archive
from mindspeed_overlay.lock import LockedWheel, hash_build_json, make_lock, read_lock
from mindspeed_overlay.plan import Plan, Selection, make_plan
from mindspeed_overlay.source import Source
from mindspeed_overlay.tree import sha256
from mindspeed_overlay.verify import verify_wheel
from mindspeed_overlay.wheel import record_hash, write_wheel
from mindspeed_overlay.wheelname import BUILD_JSON, wheel_name
from unit.overlay_sets import load, make_pins, write_overlay, write_series

TAGS = ("cp311-cp311-manylinux_2_24_x86_64", "cp311-cp311-manylinux_2_28_x86_64")
METADATA = b"""Metadata-Version: 2.4
Name: megatron-core
Version: 2.0
License: text
        of several lines
Requires-Dist: torch>=2.6.0
Provides-Extra: dev
Requires-Dist: einops~=0.8; extra == "dev"

Megatron Core
"""
PRISTINE = {
    "megatron/core/__init__.py": b"import os\n" * 50,
    "megatron/core/mlp.py": b"x = 1\n" * 50,
    "megatron/core/datasets/helpers_cpp.cpython-311-x86_64-linux-gnu.so": b"\x7fELF" + b"n" * 99,
}
Made = tuple[Plan, Source, Path]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    upstream = tmp_path / "megatron_core-2.0-cp311.whl"
    with zipfile.ZipFile(upstream, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in {**PRISTINE, "megatron_core-2.0.dist-info/METADATA": METADATA}.items():
            archive.writestr(path, data)
    write_series(tmp_path / "set", "base/a")
    write_overlay(tmp_path / "set", "base/a", **{"files__mindspeed__a.py": "a = 1\n"})
    pins = make_pins()
    overlays = load(tmp_path / "set")
    plan = make_plan(overlays, pins, pins.default, selection=Selection())
    source = Source(
        release=pins.default,
        tree="core",
        files=dict(PRISTINE),
        wheel=upstream,
        tags=TAGS,
        license_text=b"the licence\n",
        origin="test",
        notes=(),
        digest="5" * 64,
    )
    return plan, source, write(plan, source, tmp_path)


def write(plan: Plan, source: Source, folder: Path) -> Path:
    files = {
        **source.files,
        "megatron/core/mlp.py": b"x = 2\n" * 50,
        "mindspeed/a.py": b"a = 1\n",
    }
    touched = {"megatron/core/mlp.py": ("base/a",), "mindspeed/a.py": ("base/a",)}
    path = folder / wheel_name(plan, plan.build_digest(source.digest), source.tags)
    path.write_bytes(write_wheel(plan, source, files, touched=touched, lines={}))
    return path


def read(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def info_of(path: Path) -> str:
    return next(n for n in read(path) if n.endswith("/RECORD")).removesuffix("RECORD")


def test_the_name_carries_release_revision_digest_and_tags(made: Made) -> None:
    digest = made[0].build_digest("5" * 64)[:12]
    assert made[2].name == (
        f"megatron_core-2.0+mindspeed.3.g{digest}-cp311-cp311-manylinux_2_24_x86_64.manylinux_2_28_x86_64.whl"
    )


def test_newer_revisions_sort_higher_and_satisfy_the_release(made: Made) -> None:
    from packaging.specifiers import SpecifierSet
    from packaging.version import Version

    def version(revision: int) -> Version:
        name = wheel_name(replace(made[0], revision=revision), "f" * 64, TAGS)
        return Version(name.split("-")[1])

    assert version(9) < version(10) < version(100)
    assert all(SpecifierSet(s).contains(version(3)) for s in ("==2.0", ">=2.0", "~=2.0"))


def test_metadata_keeps_upstreams_requirements(made: Made) -> None:
    text = read(made[2])[info_of(made[2]) + "METADATA"].decode()
    for line in METADATA.decode().splitlines():
        assert line in text or line.startswith("Version:")
    assert re.search(r"^Version: 2\.0\+mindspeed\.3\.g[0-9a-f]{12}$", text, re.MULTILINE)
    assert "License-File: NOTICE" in text


def test_unchanged_members_keep_their_compressed_bytes_and_others_are_stored(made: Made) -> None:
    with zipfile.ZipFile(made[2]) as archive:
        kinds = {i.filename: i.compress_type for i in archive.infolist()}
    assert kinds["megatron/core/__init__.py"] == zipfile.ZIP_DEFLATED
    assert kinds["megatron/core/mlp.py"] == zipfile.ZIP_STORED
    assert kinds["mindspeed/a.py"] == zipfile.ZIP_STORED


def test_the_same_inputs_give_the_same_bytes(made: Made, tmp_path: Path) -> None:
    plan, source, path = made
    (tmp_path / "again").mkdir()
    assert write(plan, source, tmp_path / "again").read_bytes() == path.read_bytes()


def test_records_notice_and_sbom_name_what_is_inside(made: Made) -> None:
    files = read(made[2])
    info = info_of(made[2])
    build = json.loads(files[BUILD_JSON])
    assert set(build["files"]) == {n for n in files if not n.startswith(info) and n != BUILD_JSON}
    assert build["files"]["megatron/core/mlp.py"]["overlays"] == ["base/a"]
    notice = files[info + "licenses/NOTICE"].decode()
    assert "modified  megatron/core/mlp.py  (base/a)" in notice
    assert "added  mindspeed/a.py  (base/a)" in notice
    assert "megatron/core/__init__.py" not in notice
    assert files[info + "top_level.txt"] == b"megatron\nmindspeed\n"
    assert files[info + "licenses/LICENSE"] == b"the licence\n"
    assert "megatron/__init__.py" not in files
    sbom = json.loads(files[info + "sboms/mindspeed-overlay.cdx.json"])
    assert sbom["serialNumber"].startswith("urn:uuid:")
    assert [c["name"] for c in sbom["components"]] == ["megatron-core", "base/a"]


def lock_entry(path: Path) -> LockedWheel:
    data = path.read_bytes()
    return LockedWheel(
        wheel=path.name,
        wheel_sha256=sha256(data),
        build_json_sha256=hash_build_json(data),
        python="3.11",
        platform="linux_x86_64",
        upstream="megatron_core-2.0-cp311.whl",
        upstream_sha256="0" * 64,
    )


def test_a_sound_wheel_verifies_and_a_lock_makes_it_authentic(made: Made, tmp_path: Path) -> None:
    verdict = verify_wheel(made[2])
    assert verdict.problems == ()
    assert verdict.digest == made[0].build_digest("5" * 64)
    lock = make_lock(made[0], (lock_entry(made[2]),), digest=verdict.digest, source="pypi")
    (tmp_path / "lock").write_bytes(lock.to_bytes())
    assert read_lock(tmp_path / "lock") == lock
    assert not verify_wheel(made[2], expected_sha256=lock.wheels[0].wheel_sha256).problems
    assert [p.code for p in verify_wheel(made[2], expected_sha256="0" * 64).problems] == ["E906"]


def repack(path: Path, change: Callable[[dict[str, bytes]], None], *, repair: bool) -> None:
    files = read(path)
    record = info_of(path) + "RECORD"
    change(files)
    if repair:
        rows = [f"{n},sha256={record_hash(d)},{len(d)}" for n, d in files.items() if n != record]
        files[record] = "\n".join([*rows, f"{record},,", ""]).encode()
    path.write_bytes(write_archive(store(name, data) for name, data in files.items()))


@pytest.mark.parametrize("repair", [False, True])
@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda f: f.update({"megatron/core/mlp.py": b"x = 3\n" * 50}), "megatron/core/mlp.py"),
        (lambda f: f.update({"megatron/core/new.py": b""}), "megatron/core/new.py"),
        (lambda f: f.pop("mindspeed/a.py"), "mindspeed/a.py"),
        (lambda f: f.update({"evil.pth": b"import os"}), "evil.pth"),
        (lambda f: f.update({"megatron/core/x.so": b"\x7fELF"}), "megatron/core/x.so"),
    ],
)
def test_tampering_is_named_also_when_record_is_repaired(
    made: Made, change: Callable[[dict[str, bytes]], None], named: str, repair: bool
) -> None:
    repack(made[2], change, repair=repair)
    verdict = verify_wheel(made[2])
    assert [p.path for p in verdict.problems] == [named]
    assert verdict.problems[0].code == "E904"
    if named.endswith("mlp.py"):
        assert verdict.problems[0].overlay == "base/a"


def test_a_renamed_wheel_is_found(made: Made, tmp_path: Path) -> None:
    other = tmp_path / "megatron_core-2.0+mindspeed.3.gffffffffffff-py3-none-any.whl"
    shutil.copy(made[2], other)
    assert [p.code for p in verify_wheel(other).problems] == ["E902"]


def test_an_upstream_wheel_is_no_build_of_ours(made: Made) -> None:
    assert [p.code for p in verify_wheel(made[1].wheel).problems] == ["E903"]


@pytest.mark.parametrize("keep", [0, 10, 300])
def test_a_truncated_wheel_is_refused(made: Made, keep: int) -> None:
    made[2].write_bytes(made[2].read_bytes()[:keep])
    assert [p.code for p in verify_wheel(made[2]).problems] == ["E901"]


@pytest.mark.parametrize("name", ["../x.py", "/etc/x", "megatron\\x.py"])
def test_unsafe_member_names_are_named(made: Made, name: str) -> None:
    repack(made[2], lambda f: f.update({name: b""}), repair=True)
    assert any(p.code == "E901" for p in verify_wheel(made[2]).problems)


def test_the_archive_is_readable_by_zipfile_from_memory(made: Made) -> None:
    with zipfile.ZipFile(io.BytesIO(made[2].read_bytes())) as archive:
        assert archive.testzip() is None
