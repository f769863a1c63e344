"""Read somebody's diff: any number of files, as git or diff writes it.

Looser than the overlay format, and only for moving in: modes are ignored, renames and deletions are
told and left out. Hunks apply exactly; one may have moved where its old lines stand only once.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from mindspeed_overlay.errors import ApplyError, Problem
from mindspeed_overlay.patch_model import find_all, split_lines
from mindspeed_overlay.paths import explain_unsafe_path

_HUNK = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


@dataclass
class FileDiff:
    """The changes to one file.

    Attributes:
        path: after the change, or before it where the file goes.
        kind: `changed`, `added`, `deleted`, `renamed` or `binary`.
        hunks: first old line (from 1) and the lines with their marks.
    """

    path: str
    kind: str = "changed"
    hunks: list[tuple[int, list[bytes]]] = field(default_factory=list)


def read_diff(data: bytes, *, name: str) -> list[FileDiff]:
    """The files of a diff, in order.

    Raises:
        ApplyError: E510 a NUL byte, E512 an unsafe path, E515 no diff, E516 a hunk is cut off.
    """
    if b"\0" in data:
        raise ApplyError(_wrong("E510", name, "holds a NUL byte"))
    files = list(_Reader(split_lines(data), name).read())
    if not files:
        raise ApplyError(_wrong("E515", name, "has no diff in it"))
    for file in files:
        if unsafe := explain_unsafe_path(file.path):
            raise ApplyError(_wrong("E512", name, f"{file.path!r}: {unsafe}"))
    return files


def _wrong(code: str, name: str, what: str) -> Problem:
    return Problem(code=code, message=f"{name} {what}", patch=name)


class _Reader:
    def __init__(self, lines: list[bytes], name: str) -> None:
        self._lines, self._name, self._at = lines, name, 0

    def read(self) -> Iterator[FileDiff]:
        current: FileDiff | None = None
        while self._at < len(self._lines):
            line = self._lines[self._at].rstrip(b"\r\n")
            if line.startswith(b"diff --git "):
                if current is not None:
                    yield current
                current = FileDiff(_path_of(line.rpartition(b" b/")[2], b""))
            elif line.startswith(b"--- ") and self._peek(b"+++ "):
                old, new = line[4:], self._lines[self._at + 1].rstrip(b"\r\n")[4:]
                if current is None or current.hunks:
                    if current is not None:
                        yield current
                    current = FileDiff("")
                current.path = _path_of(old if _is_null(new) else new, b"ab")
                current.kind = "added" if _is_null(old) else current.kind
                current.kind = "deleted" if _is_null(new) else current.kind
                self._at += 1
            elif current is not None:
                self._read_line(line, current)
            self._at += 1
        if current is not None:
            yield current

    def _read_line(self, line: bytes, current: FileDiff) -> None:
        if line.startswith(b"new file mode"):
            current.kind = "added"
        elif line.startswith(b"deleted file mode"):
            current.kind = "deleted"
        elif line.startswith((b"rename ", b"copy ")):
            current.kind = "renamed"
        elif line.startswith((b"GIT binary patch", b"Binary files ")):
            current.kind = "binary"
        elif (match := _HUNK.match(line)) is not None:
            current.hunks.append(self._read_hunk(match))

    def _peek(self, mark: bytes) -> bool:
        return self._at + 1 < len(self._lines) and self._lines[self._at + 1].startswith(mark)

    def _read_hunk(self, match: re.Match[bytes]) -> tuple[int, list[bytes]]:
        olds, news = (int(match[k]) if match[k] is not None else 1 for k in (2, 4))
        lines: list[bytes] = []
        start = self._at
        while olds > 0 or news > 0:
            self._at += 1
            line = self._lines[self._at] if self._at < len(self._lines) else b""
            # Editors strip the space of an empty context line.
            line = b" " + line if line in (b"\n", b"\r\n") else line
            if line[:1] not in (b" ", b"+", b"-"):
                raise ApplyError(_wrong("E516", self._name, f"line {start + 1}: a hunk is cut off"))
            olds -= line[:1] != b"+"
            news -= line[:1] != b"-"
            lines.append(line)
            if self._peek(b"\\ "):
                lines[-1] = lines[-1].rstrip(b"\r\n")
                self._at += 1
        return int(match[1]), lines


def _is_null(path: bytes) -> bool:
    return path.partition(b"\t")[0] == b"/dev/null"


def _path_of(raw: bytes, sides: bytes) -> str:
    path = raw.partition(b"\t")[0]
    if path[:1] in (b"a", b"b") and path[1:2] == b"/" and path[:1] in sides:
        path = path[2:]
    return path.decode(errors="surrogateescape")


def apply_diff(base: bytes, diff: FileDiff) -> bytes:
    """The file with the changes.

    Raises:
        ApplyError: E502, a hunk's old lines stand nowhere, or E503 at several places.
    """
    lines = split_lines(base)
    result: list[bytes] = []
    at = 0
    for number, (start, marked) in enumerate(diff.hunks, 1):
        old = [line[1:] for line in marked if line[:1] != b"+"]
        new = [line[1:] for line in marked if line[:1] != b"-"]
        place = max(start - bool(old), 0)
        if lines[place : place + len(old)] != old or place < at:
            places = [k for k in find_all(lines, old) if k >= at] if old else []
            if len(places) != 1:
                what = "stand nowhere" if not places else "stand at several places"
                code = "E503" if places else "E502"
                message = f"the old lines of hunk {number} {what}"
                raise ApplyError(_wrong(code, diff.path, message))
            place = places[0]
        result += lines[at:place] + new
        at = place + len(old)
    return b"".join(result + lines[at:])
