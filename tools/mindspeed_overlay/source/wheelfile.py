"""Reading an upstream wheel as hostile input: every member is known, or the wheel is refused.

A wheel of a pinned hash holds what it held when it was pinned; these checks are what makes pinning
safe in the first place, and they name what is wrong where only a hash would differ.
"""

import base64
import csv
import hashlib
import io
import re
import stat
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from mindspeed_overlay.errors import Problem, SourceError
from mindspeed_overlay.tree import is_digested

MAX_MEMBER_BYTES = 64 << 20
MAX_TOTAL_BYTES = 512 << 20
_NATIVE = re.compile(r"\.(so(\.[0-9.]+)?|pyd|dll|dylib|a|o|exe)$", re.IGNORECASE)
_HELPERS = re.compile(r"megatron/core/datasets/helpers_cpp\.[\w.-]*\.so")


@dataclass(frozen=True)
class UpstreamWheel:
    """The members of a wheel: source files (with the helpers_cpp extension), and its .dist-info."""

    files: dict[str, bytes]
    dist_info: dict[str, bytes]

    @property
    def natives(self) -> tuple[str, ...]:
        """The compiled members."""
        return tuple(path for path in sorted(self.files) if is_helpers(path))

    def metadata(self, key: str) -> str:
        """The first value of a METADATA header, or ""."""
        text = self.dist_info["METADATA"].decode("utf-8", "replace")
        headers = text.partition("\n\n")[0]
        match = re.search(rf"^{re.escape(key)}:[ \t]*(.*?)\r?$", headers, re.MULTILINE)
        return match[1] if match else ""


def is_helpers(path: str) -> bool:
    """Whether `path` is the one extension module that official wheels carry."""
    return _HELPERS.fullmatch(path) is not None


def read_wheel(path: Path, *, version: str, training: bool) -> UpstreamWheel:
    """Read all members of an official megatron-core wheel.

    Args:
        path: the wheel; its hash must have been compared with the pin before.
        version: of the release; names the .dist-info folder.
        training: whether the release's distribution carries megatron/training.

    Raises:
        SourceError: E312 not a sound wheel (corrupt, unsafe or repeated names, too large, RECORD
            does not agree); E313 a file that no official wheel holds; E314 a foreign native file.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            infos = [info for info in archive.infolist() if not info.is_dir()]
            problems = _check_names(archive.infolist()) + _check_sizes(infos)
            if problems:
                raise _refused(path, problems)
            members = {info.filename: archive.read(info) for info in infos}
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError) as error:
        raise _refused(path, [("E312", f"corrupt zip: {error}")]) from error
    except (NotImplementedError, RuntimeError) as error:
        raise _refused(path, [("E312", f"unreadable member: {error}")]) from error
    return _classify(path, members, version, training)


def _check_names(infos: list[zipfile.ZipInfo]) -> list[tuple[str, str]]:
    problems = []
    seen: set[str] = set()
    for info in infos:
        # orig_filename still holds what zipfile normalises away (NUL, backslash).
        name = info.orig_filename
        parts = name.removesuffix("/").split("/")
        unsafe = (
            "\0" in name
            or "\\" in name
            or ":" in parts[0]
            or any(part in ("", ".", "..") or part.lower() == ".git" for part in parts)
        )
        if unsafe:
            problems.append(("E312", f"unsafe member name {name!r}"))
        elif name.casefold() in seen:
            problems.append(("E312", f"member {name!r} is there twice"))
        elif stat.S_ISLNK(info.external_attr >> 16):
            problems.append(("E312", f"member {name!r} is a symlink"))
        seen.add(name.casefold())
    return problems


def _check_sizes(infos: list[zipfile.ZipInfo]) -> list[tuple[str, str]]:
    large = [info.filename for info in infos if info.file_size > MAX_MEMBER_BYTES]
    problems = [("E312", f"member {name!r} is over {MAX_MEMBER_BYTES >> 20} MiB") for name in large]
    if sum(info.file_size for info in infos) > MAX_TOTAL_BYTES:
        problems.append(("E312", f"its members exceed {MAX_TOTAL_BYTES >> 20} MiB together"))
    return problems


def _classify(path: Path, members: dict[str, bytes], version: str, training: bool) -> UpstreamWheel:
    prefix = f"megatron_core-{version}.dist-info/"
    files, dist_info, problems = {}, {}, []
    for name, data in members.items():
        if name.startswith(prefix):
            dist_info[name.removeprefix(prefix)] = data
        elif is_helpers(name) or is_digested(name, training=training):
            files[name] = data
        elif _NATIVE.search(name):
            problems.append(("E314", f"foreign native file {name!r}"))
        else:
            problems.append(("E313", f"unexpected file {name!r}"))
    missing = [name for name in ("METADATA", "WHEEL", "RECORD") if name not in dist_info]
    problems += [("E312", f"no {prefix}{name}") for name in missing]
    if not missing:
        problems += _check_record(members, prefix)
    if problems:
        raise _refused(path, problems)
    return UpstreamWheel(files, dist_info)


def _check_record(members: dict[str, bytes], prefix: str) -> list[tuple[str, str]]:
    """What RECORD and the members do not agree on, by name."""
    record = f"{prefix}RECORD"
    text = members[record].decode("utf-8", "replace")
    rows = {row[0]: row[1] for row in csv.reader(io.StringIO(text)) if len(row) == 3}
    problems = []
    for name, data in members.items():
        if name not in rows:
            problems.append(("E312", f"{name!r} is not in its RECORD"))
        elif name != record and rows[name] != _record_hash(data):
            problems.append(("E312", f"{name!r} is not what its RECORD says"))
    absent = sorted(rows.keys() - members.keys())
    return problems + [("E312", f"{name!r} of its RECORD is missing") for name in absent]


def _record_hash(data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
    return f"sha256={digest.rstrip(b'=').decode()}"


def _refused(path: Path, problems: list[tuple[str, str]]) -> SourceError:
    return SourceError(
        *(
            Problem(code=code, message=f"{path.name}: {message}", path=str(path))
            for code, message in problems
        )
    )
