"""Where the lines of a patched file come from: a wheel, an installation, or an applied tree."""

import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindspeed_overlay.errors import Problem, UsageError, VerifyError
from mindspeed_overlay.patch import split_lines
from mindspeed_overlay.patch_diff import diff_lines
from mindspeed_overlay.tree import sha256
from mindspeed_overlay.wheelname import BUILD_JSON


@dataclass(frozen=True)
class Origin:
    """Where one line comes from.

    Attributes:
        overlay: its id; "" for a line of the release.
        patch: the patch file; "" where the whole file is the overlay's.
        hunk: its number, from 1; 0 where that is not known.
        upstream: for a line of the release its tag, and its commit where a history was at hand.
        upstream_line: its line in the pristine file, from 1; 0 where that is not known.
    """

    line: int
    text: str
    overlay: str = ""
    patch: str = ""
    hunk: int = 0
    upstream: str = ""
    upstream_line: int = 0

    def describe(self) -> str:
        """The origin in words."""
        if not self.overlay:
            return self.upstream
        hunk = f" hunk {self.hunk}" if self.hunk else ""
        return f"{self.overlay} {self.patch}{hunk}" if self.patch else f"{self.overlay} (new file)"

    def to_json(self) -> dict[str, Any]:
        """For machines."""
        return {key: value for key, value in self.__dict__.items() if value or key == "text"}


@dataclass(frozen=True)
class Blamed:
    """A file with the origin of every line, and the release it was built on."""

    path: str
    release: str
    origins: tuple[Origin, ...]


def blame_wheel(wheel: Path, path: str) -> Blamed:
    """The lines of a file of a built wheel.

    Raises:
        VerifyError: E903, it is no build of this tool; E904, the file is not what it records.
        UsageError: E204, it holds no such file.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = set(archive.namelist())
            build = json.loads(archive.read(BUILD_JSON)) if BUILD_JSON in names else None
            data = archive.read(path) if path in names else None
    except (zipfile.BadZipFile, OSError, ValueError) as error:
        message = f"{wheel}: cannot be read: {error}"
        raise VerifyError(Problem(code="E903", path=str(wheel), message=message)) from error
    return _blame_build(build, path, data, where=str(wheel))


def blame_folder(root: Path, path: str) -> Blamed:
    """The lines of a file of an installed or unpacked wheel; errors as in `blame_wheel`."""
    record = root / BUILD_JSON
    build = json.loads(record.read_bytes()) if record.is_file() else None
    data = (root / path).read_bytes() if (root / path).is_file() else None
    return _blame_build(build, path, data, where=str(root))


def find_build_root(path: Path) -> Path | None:
    """The folder above a file that holds `mindspeed/build.json`."""
    return next((p for p in path.absolute().parents if (p / BUILD_JSON).is_file()), None)


def _blame_build(
    build: Mapping[str, Any] | None, path: str, data: bytes | None, *, where: str
) -> Blamed:
    if build is None:
        message = f"{where}: has no {BUILD_JSON}: this is not a build of this tool"
        raise VerifyError(Problem(code="E903", path=where, message=message))
    if data is None:
        message = f"{where} holds no {path}"
        raise UsageError(Problem(code="E204", path=path, message=message))
    record = build["files"].get(path)
    if record is None or record["sha256"] != sha256(data):
        message = f"{path}: is not what {BUILD_JSON} says, so its lines are not known"
        hint = "`mindspeed-overlay verify` tells what was changed"
        raise VerifyError(Problem(code="E904", path=path, message=message, hint=hint))
    owners = {
        line: (overlay, patch, hunk)
        for first, last, overlay, patch, hunk in record.get("lines", ())
        for line in range(first, last + 1)
    }
    whole = " ".join(record["overlays"]) if "lines" not in record else ""
    release = str(build["release"])
    return Blamed(path, release, tuple(make_origins(data, owners, whole=whole, release=release)))


def make_origins(
    data: bytes,
    owners: Mapping[int, tuple[str, str, int]],
    *,
    whole: str,
    release: str,
) -> list[Origin]:
    """The origin of every line.

    Args:
        data: the file.
        owners: line to overlay, patch and hunk.
        whole: the overlay whose own file it is, "" for upstream's.
        release: the tag of upstream's lines.
    """
    found = []
    for number, raw in enumerate(split_lines(data), 1):
        text = raw.decode(errors="replace").rstrip("\r\n")
        if whole:
            found.append(Origin(number, text, whole))
        elif number in owners:
            found.append(Origin(number, text, *owners[number]))
        else:
            found.append(Origin(number, text, upstream=release))
    return found


def add_upstream(blamed: Blamed, pristine: bytes, commits: Mapping[int, str]) -> Blamed:
    """The same with the pristine line, and its commit, of every line of the release.

    Args:
        blamed: a patched file.
        pristine: the release's file.
        commits: pristine line to a commit, for people; may be empty.
    """
    after = [origin.text.encode(errors="replace") for origin in blamed.origins]
    before = [line.decode(errors="replace").rstrip("\r\n").encode(errors="replace")
              for line in split_lines(pristine)]  # fmt: skip
    numbers: dict[int, int] = {}
    i = j = 0
    for i1, i2, j1, j2 in (*diff_lines(before, after), (len(before), 0, len(after), 0)):
        numbers.update(zip(range(j + 1, j1 + 1), range(i + 1, i1 + 1), strict=False))
        i, j = i2, j2
    origins = []
    for origin in blamed.origins:
        line = 0 if origin.overlay else numbers.get(origin.line, 0)
        commit = commits.get(line, "")
        upstream = f"{origin.upstream} {commit}".strip()
        fields = {**origin.__dict__, "upstream": upstream, "upstream_line": line}
        origins.append(Origin(**fields))
    return Blamed(blamed.path, blamed.release, tuple(origins))
