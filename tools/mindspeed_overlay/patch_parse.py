"""Read a patch file strictly: one target, exact counts, nothing but edits.

Everything wrong with the file is collected and raised at once. What other tools would take for an
operation (renames, modes, new or deleted files, binary and ed patches) is named and refused.
"""

import re
from collections.abc import Iterable

from mindspeed_overlay.errors import ApplyError, Problem
from mindspeed_overlay.patch_header import read_header, starts_diff
from mindspeed_overlay.patch_hunks import FORMAT_HINT, HunkReader, PatchProblem
from mindspeed_overlay.patch_model import Hunk, Patch, split_lines
from mindspeed_overlay.paths import explain_unsafe_path

MAX_PATCH_BYTES = 1 << 20

_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_NEW_FILES = "new files belong in the overlay's files/ folder"
_NO_DIFF = (
    (rb"^GIT binary patch|^Binary files .* differ", "a binary patch"),
    (rb"^\d+(,\d+)?[acd]\r?$", "an ed script"),
    (rb"^\*\*\* \S", "a context diff"),
)
_EXTENDED = (
    (b"old mode", "a mode change"),
    (b"new mode", "a mode change"),
    (b"new file mode", f"the creation of a file ({_NEW_FILES})"),
    (b"deleted file mode", "the deletion of a file"),
    (b"similarity index", "a rename or copy"),
    (b"dissimilarity index", "a rewrite"),
    (b"rename ", "a rename"),
    (b"copy ", "a copy"),
    (b"GIT binary patch", "a binary patch"),
    (b"Binary files ", "a binary patch"),
)


def parse_patch(data: bytes, *, name: str) -> Patch:
    """Read one patch file.

    Args:
        data: the file's bytes.
        name: the file's name, for messages.

    Raises:
        ApplyError: E510 to E519, every fault of the file.
    """
    reader = _PatchReader(data, name=name)
    patch = reader.read()
    if reader.problems:
        problems = sorted(reader.problems, key=lambda problem: problem.line)
        raise ApplyError(*(_locate(p, name=name, target=patch.target) for p in problems))
    return patch


def _locate(problem: PatchProblem, *, name: str, target: str) -> Problem:
    place = f"{name}:{problem.line}" if problem.line else name
    return Problem(
        code=problem.code,
        message=f"{place}: {problem.message}",
        patch=name,
        hunk=problem.hunk,
        path=target,
        line=problem.line,
        symbol=problem.symbol,
        hint=problem.hint or FORMAT_HINT,
    )


class _PatchReader:
    """Goes through one file from the top; `problems` grows on the way."""

    def __init__(self, data: bytes, *, name: str) -> None:
        self.data = data
        self.name = name
        self.lines = split_lines(data)
        self.problems: list[PatchProblem] = []

    def read(self) -> Patch:
        nothing = Patch(self.name, "", {}, "", ())
        if not self._screen():
            return nothing
        start = next((i for i, line in enumerate(self.lines) if starts_diff(line)), None)
        if start is None:
            self._explain_no_diff()
            return nothing
        fields, reason, wrong = read_header(self.lines[:start])
        for number, message in wrong:
            self._fail("E511", message, line=number)
        at, target = self._read_names(start, fields)
        reader = HunkReader(self.lines, at)
        hunks = reader.read()
        self.problems += reader.problems
        if not hunks and not self.problems:
            self._fail("E515", "no hunks: the patch changes nothing", line=at)
        fields = self._check_symbols(fields, hunks)
        return Patch(self.name, target, fields, reason, tuple(hunks))

    def _screen(self) -> bool:
        if not self.data.strip():
            self._fail("E515", "the patch is empty")
        elif len(self.data) > MAX_PATCH_BYTES:
            self._fail("E510", f"{len(self.data)} bytes, over the limit of {MAX_PATCH_BYTES}")
        elif self.data.startswith(_UTF16_MARKS):
            self._fail("E510", "the patch is UTF-16", hint="save it as UTF-8 without a mark")
        elif b"\0" in self.data:
            line = self.data[: self.data.index(b"\0")].count(b"\n") + 1
            self._fail("E510", "a NUL byte: binary, or UTF-16 without a mark", line=line)
        elif self.data.startswith(b"\xef\xbb\xbf"):
            self._fail("E510", "a byte order mark", hint="save it as UTF-8 without a mark")
        elif not self.data.endswith(b"\n"):
            self._fail("E510", "no line feed at the end: cut off?", line=len(self.lines))
        return not self.problems

    def _explain_no_diff(self) -> None:
        for pattern, what in _NO_DIFF:
            if match := re.search(pattern, self.data, re.MULTILINE):
                line = self.data[: match.start()].count(b"\n") + 1
                self._fail("E514", f"{what} is refused", line=line)
                return
        self._fail("E515", "no diff: no '--- a/' line")

    def _read_names(self, at: int, fields: dict[str, tuple[str, ...]]) -> tuple[int, str]:
        """From the diff's first line to its first hunk; gives where that is, and the target."""
        named: list[tuple[int, str]] = []
        if self.lines[at].startswith(b"diff --git "):
            at = self._skip_extended(at + 1)
        for mark, side in ((b"--- ", "a/"), (b"+++ ", "b/")):
            line = self.lines[at] if at < len(self.lines) else b""
            if not line.startswith(mark):
                message = f"expected '{mark.decode()}{side}TARGET'"
                self._fail("E515", message, line=min(at + 1, len(self.lines)))
                continue
            at += 1
            named.append((at, line[4:].rstrip(b"\r\n").decode(errors="replace")))
        paths = [self._read_path(line, raw) for line, raw in named]
        targets = fields.get("Target", ())
        if not any(targets):
            self._fail("E511", "no Target in the header", line=1)
        elif unsafe := explain_unsafe_path(targets[0]):
            self._fail("E512", f"Target {targets[0]!r}: {unsafe}", line=self._find_field("Target"))
        known = {path for path in (*targets, *paths) if path}
        if len(known) > 1:
            different = ", ".join(sorted(known))
            self._fail("E513", f"Target, '---' and '+++' name different files: {different}")
        return at, next(iter(filter(None, (*targets, *paths))), "")

    def _skip_extended(self, at: int) -> int:
        while at < len(self.lines) and not self.lines[at].startswith(b"--- "):
            line = self.lines[at]
            if line.startswith(b"@@ ") or not line.strip():
                break
            at += 1
            what = next((text for mark, text in _EXTENDED if line.startswith(mark)), "")
            if what:
                self._fail("E514", f"{what} is refused", line=at)
            elif not line.startswith(b"index "):
                self._fail("E514", f"{line[:60].decode(errors='replace')!r} is refused", line=at)
        return at

    def _read_path(self, line: int, raw: str) -> str:
        if raw == "/dev/null":
            what = f"the creation or deletion of a file is refused; {_NEW_FILES}"
            self._fail("E514", what, line=line)
            return ""
        path = raw[2:] if raw.startswith(("a/", "b/")) else raw
        if unsafe := explain_unsafe_path(path):
            self._fail("E512", f"{path!r}: {unsafe}", line=line)
        elif path == raw or '"' in path or "\t" in path:
            self._fail("E513", f"{raw!r} is not a/TARGET or b/TARGET, bare", line=line)
        return path

    def _check_symbols(
        self, fields: dict[str, tuple[str, ...]], hunks: Iterable[Hunk]
    ) -> dict[str, tuple[str, ...]]:
        """Hold the Symbol field against the hunks; gives the fields with it in canonical form."""
        edited = list(dict.fromkeys(hunk.symbol for hunk in hunks if hunk.symbol))
        listed = {s.strip() for s in ",".join(fields.get("Symbol", ())).split(",")} - {""}
        if edited and not self.problems and listed != set(edited):
            message = f"Symbol lists {', '.join(sorted(listed)) or 'nothing'}, the hunks edit "
            self._fail("E519", message + ", ".join(edited), line=self._find_field("Symbol"))
        return fields | {"Symbol": (", ".join(edited),)}

    def _find_field(self, key: str) -> int:
        mark = f"{key}:".encode()
        return next((n for n, line in enumerate(self.lines, 1) if line.startswith(mark)), 1)

    def _fail(self, code: str, message: str, *, line: int = 0, hint: str = "") -> None:
        self.problems.append(PatchProblem(code, message, line=line, hint=hint))
