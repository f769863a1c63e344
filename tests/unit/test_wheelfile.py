"""Upstream wheels as hostile input."""

import stat
import zipfile
from pathlib import Path

import pytest

from builders import ARM_312, CORE, HELPERS, LICENSE, VERSION, make_wheel, zip_bytes
from mindspeed_overlay.errors import SourceError
from mindspeed_overlay.source import wheelfile
from mindspeed_overlay.source.wheelfile import UpstreamWheel, is_helpers, read_wheel


def read(path: Path, *, training: bool = False) -> UpstreamWheel:
    return read_wheel(path, version=VERSION, training=training)


def refuse(path: Path, *, training: bool = False) -> dict[str, str]:
    """The problems of a wheel that is refused: message to code."""
    with pytest.raises(SourceError) as caught:
        read(path, training=training)
    return {problem.message: problem.code for problem in caught.value.problems}


def rewrite(path: Path, change: dict[str | zipfile.ZipInfo, bytes]) -> None:
    """Add members to a wheel, whatever their names."""
    with zipfile.ZipFile(path) as archive:
        members = [(info, archive.read(info)) for info in archive.infolist()]
    path.write_bytes(zip_bytes([*members, *change.items()]))


def test_an_official_wheel_is_read_whole(tmp_path: Path) -> None:
    wheel = read(make_wheel(tmp_path, tag=ARM_312))
    assert {path: data for path, data in wheel.files.items() if not is_helpers(path)} == CORE
    assert [wheel.files[path] for path in wheel.natives] == [f"ELF {ARM_312}".encode()]
    assert wheel.dist_info["licenses/LICENSE"] == LICENSE
    assert wheel.metadata("Requires-Python") == ">=3.10"
    assert wheel.metadata("No-Such-Header") == ""


@pytest.mark.parametrize(
    "name",
    [
        "../evil.py",
        "megatron/core/../../evil.py",
        "/etc/evil.py",
        "C:/evil.py",
        "megatron\\core\\evil.py",
        "megatron/core/.git/config",
        "megatron/core/.GIT/hooks/x",
        "megatron//core/evil.py",
        "./megatron/core/evil.py",
    ],
)
def test_a_member_that_would_leave_the_tree_is_refused(tmp_path: Path, name: str) -> None:
    path = make_wheel(tmp_path)
    info = zipfile.ZipInfo("placeholder")
    info.filename = info.orig_filename = name
    rewrite(path, {info: b"x"})
    assert refuse(path)[f"{path.name}: unsafe member name {name!r}"] == "E312"


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("name", ["megatron/core/__init__.py", "Megatron/Core/__INIT__.py"])
def test_a_member_that_is_there_twice_is_refused(tmp_path: Path, name: str) -> None:
    path = make_wheel(tmp_path)
    rewrite(path, {name: b"second"})
    assert refuse(path)[f"{path.name}: member {name!r} is there twice"] == "E312"


def test_a_symlink_is_refused(tmp_path: Path) -> None:
    path = make_wheel(tmp_path)
    info = zipfile.ZipInfo("megatron/core/link.py")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    rewrite(path, {info: b"/etc/passwd"})
    assert refuse(path)[f"{path.name}: member 'megatron/core/link.py' is a symlink"] == "E312"


@pytest.mark.parametrize(
    "name",
    [
        "megatron/core/evil.so",
        "megatron/core/datasets/other_cpp.cpython-311-x86_64-linux-gnu.so",
        "megatron/core/lib/libevil.so.1",
        "megatron_core.libs/x.dll",
        "megatron/core/helpers_cpp.so",
    ],
)
def test_a_foreign_native_file_is_refused_by_name(tmp_path: Path, name: str) -> None:
    path = make_wheel(tmp_path, extra={name: b"ELF"})
    assert refuse(path) == {f"{path.name}: foreign native file {name!r}": "E314"}


@pytest.mark.parametrize(
    "name",
    [
        "evil.pth",
        "megatron/__init__.py",
        "megatron/core/data.json",
        "megatron/evil.py",
        "other/__init__.py",
        f"megatron_core-{VERSION}.data/scripts/run",
        "megatron_core-9.dist-info/METADATA",
    ],
)
def test_an_unexpected_file_is_refused_by_name(tmp_path: Path, name: str) -> None:
    path = make_wheel(tmp_path, extra={name: b"x"})
    assert refuse(path) == {f"{path.name}: unexpected file {name!r}": "E313"}


def test_training_is_expected_only_where_the_release_carries_it(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, extra={"megatron/training/x.py": b"x = 1\n"})
    assert "megatron/training/x.py" in read(path, training=True).files
    assert set(refuse(path, training=False).values()) == {"E313"}


def test_everything_wrong_is_named_at_once(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, extra={"a.pth": b"x", "b.so": b"x"})
    assert sorted(refuse(path).values()) == ["E313", "E314"]


def test_a_file_that_record_does_not_list_is_named(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, unrecorded={"megatron/core/evil.py": b"x"})
    assert refuse(path) == {f"{path.name}: 'megatron/core/evil.py' is not in its RECORD": "E312"}


def test_a_file_that_record_contradicts_is_named(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, unrecorded={"megatron/core/__init__.py": b"changed"})
    said = f"{path.name}: 'megatron/core/__init__.py' is not what its RECORD says"
    assert refuse(path) == {said: "E312"}


def test_a_file_that_only_record_has_is_named(tmp_path: Path) -> None:
    path = make_wheel(tmp_path)
    with zipfile.ZipFile(path) as archive:
        kept = [(i, archive.read(i)) for i in archive.infolist() if "mlp.py" not in i.filename]
    path.write_bytes(zip_bytes(kept))
    said = f"{path.name}: 'megatron/core/transformer/mlp.py' of its RECORD is missing"
    assert refuse(path) == {said: "E312"}


@pytest.mark.parametrize("name", ["METADATA", "WHEEL", "RECORD"])
def test_a_wheel_without_its_own_records_is_refused(tmp_path: Path, name: str) -> None:
    path = make_wheel(tmp_path)
    with zipfile.ZipFile(path) as archive:
        kept = [
            (i, archive.read(i)) for i in archive.infolist() if not i.filename.endswith(f"/{name}")
        ]
    path.write_bytes(zip_bytes(kept))
    assert f"{path.name}: no megatron_core-{VERSION}.dist-info/{name}" in refuse(path)


def test_a_truncated_zip_is_refused(tmp_path: Path) -> None:
    path = make_wheel(tmp_path)
    path.write_bytes(path.read_bytes()[:-30])
    assert set(refuse(path).values()) == {"E312"}


def test_a_zip_with_a_flipped_byte_is_refused(tmp_path: Path) -> None:
    path = make_wheel(tmp_path)
    data = bytearray(path.read_bytes())
    data[60] ^= 0xFF
    path.write_bytes(data)
    (message,) = refuse(path)
    assert "corrupt zip" in message


def test_an_encrypted_member_is_refused(tmp_path: Path) -> None:
    path = make_wheel(tmp_path)
    data = bytearray(path.read_bytes())
    start = data.rindex(b"PK\x01\x02")
    data[start + 8] |= 1
    path.write_bytes(data)
    assert set(refuse(path).values()) == {"E312"}


def test_an_oversized_member_is_refused_before_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheelfile, "MAX_MEMBER_BYTES", 1 << 20)
    path = make_wheel(tmp_path, extra={"megatron/core/big.py": bytes((1 << 20) + 1)})
    assert refuse(path) == {f"{path.name}: member 'megatron/core/big.py' is over 1 MiB": "E312"}


def test_members_that_are_too_large_together_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheelfile, "MAX_TOTAL_BYTES", 1 << 20)
    path = make_wheel(tmp_path, extra={"megatron/core/big.py": bytes((1 << 20) + 1)})
    assert refuse(path) == {f"{path.name}: its members exceed 1 MiB together": "E312"}


def test_the_helpers_are_known_by_their_whole_path() -> None:
    assert is_helpers(HELPERS)
    assert not is_helpers("megatron/core/datasets/helpers_cpp.py")
    assert not is_helpers("megatron/core/datasets/sub/helpers_cpp.so")
