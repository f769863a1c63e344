"""The zip writer: readable by others, and the same bytes for the same members."""

import io
import os
import subprocess
import zipfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from mindspeed_overlay.archive import keep, store, write_archive

NAMES = st.text("abc/_.é", min_size=1, max_size=12).filter(lambda n: n.strip("/.") == n)


@given(st.dictionaries(NAMES, st.binary(max_size=200), max_size=8))
def test_what_is_stored_is_read_back(files: dict[str, bytes]) -> None:
    data = write_archive(store(name, content) for name, content in files.items())
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        assert {name: archive.read(name) for name in archive.namelist()} == files
    assert data == write_archive(store(name, content) for name, content in files.items())


def test_a_kept_member_has_the_compressed_bytes_it_had(tmp_path: Path) -> None:
    source = tmp_path / "source.zip"
    with zipfile.ZipFile(source, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("a.py", b"x = 1\n" * 500)
    with zipfile.ZipFile(source) as archive:
        member = keep(archive, archive.getinfo("a.py"))
        assert member.data in source.read_bytes()
    with zipfile.ZipFile(io.BytesIO(write_archive([member, store("b", b"b")]))) as archive:
        assert archive.read("a.py") == b"x = 1\n" * 500
        info = archive.getinfo("a.py")
        assert info.date_time == (1980, 1, 1, 0, 0, 0)
        assert info.external_attr >> 16 == 0o100644


def test_unzip_and_python_agree_on_the_archive(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    path.write_bytes(write_archive([store("d/f.txt", b"hello"), store("é", b"")]))
    out = tmp_path / "out"
    with zipfile.ZipFile(path) as archive:
        archive.extractall(out)
    assert (out / "d/f.txt").read_bytes() == b"hello"
    listing = subprocess.run(
        ["python3", "-m", "zipfile", "-t", str(path)],
        check=True,
        capture_output=True,
        env={**os.environ, "LC_ALL": "C"},
    )
    assert b"Done testing" in listing.stdout
