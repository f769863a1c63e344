"""A zip writer whose bytes depend on its input alone.

Members of an upstream wheel that did not change keep their compressed bytes; everything else is
stored, so no zlib variant can change the result. Every member is a regular file, mode 0644, dated
1980-01-01.
"""

import struct
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

_DATE = 0x21  # 1980-01-01 in the DOS date format; the time is 0
_MODE = (0o100644 << 16) & 0xFFFFFFFF
_UTF8 = 0x800
_LOCAL = struct.Struct("<IHHHHHIIIHH")
_CENTRAL = struct.Struct("<IHHHHHHIIIHHHHHII")
_END = struct.Struct("<IHHHHIIH")


@dataclass(frozen=True)
class Member:
    """One file of an archive, as it will stand in it."""

    path: str
    data: bytes
    """Compressed as `method` says."""
    method: int
    crc: int
    size: int
    """Uncompressed size in bytes."""


def store(path: str, data: bytes) -> Member:
    """A member that is not compressed."""
    return Member(path, data, zipfile.ZIP_STORED, zlib.crc32(data), len(data))


def keep(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Member:
    """The member of an open archive with its compressed bytes as they are."""
    assert archive.fp is not None
    archive.fp.seek(info.header_offset)
    header = _LOCAL.unpack(archive.fp.read(_LOCAL.size))
    archive.fp.seek(header[9] + header[10], 1)
    data = archive.fp.read(info.compress_size)
    return Member(info.filename, data, info.compress_type, info.CRC, info.file_size)


def write_archive(members: Iterable[Member]) -> bytes:
    """The bytes of a zip of `members`, in their order."""
    body, directory, offset = bytearray(), bytearray(), 0
    count = 0
    for member in members:
        name = member.path.encode()
        fields = (
            _UTF8, member.method, 0, _DATE, member.crc, len(member.data), member.size, len(name)
        )  # fmt: skip
        local = _LOCAL.pack(0x04034B50, 20, *fields, 0) + name + member.data
        directory += _CENTRAL.pack(
            0x02014B50, (3 << 8) | 20, 20, *fields, 0, 0, 0, 0, _MODE, offset
        )
        directory += name
        body += local
        offset += len(local)
        count += 1
    end = _END.pack(0x06054B50, 0, 0, count, count, len(directory), offset, 0)
    return bytes(body + directory + end)
