"""Read the hunks of a patch: counts, order, line ends and symbols must all be right."""

import re
from dataclasses import dataclass

from mindspeed_overlay.patch_model import Hunk

FORMAT_HINT = "`mindspeed-overlay refresh ID` writes patches anew; see docs/overlay-format.md"

_HEAD = re.compile(rb"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@(?: (.*))?")
_SYMBOL = re.compile(r"<module>|[^\W\d]\w*(\.[^\W\d]\w*)*")
_NO_NEWLINE = b"\\ "


@dataclass(frozen=True)
class PatchProblem:
    """One fault of a patch file, before its overlay is known."""

    code: str
    message: str
    line: int = 0
    hunk: int = 0
    symbol: str = ""
    hint: str = ""


class HunkReader:
    """Reads hunks from `at` to the end of the file; `problems` grows on the way."""

    def __init__(self, lines: list[bytes], at: int) -> None:
        self.lines = lines
        self.at = at
        self.problems: list[PatchProblem] = []
        self._number = 0
        self._symbol = ""

    def read(self) -> list[Hunk]:
        """Every hunk that could be read, well-formed or not."""
        hunks: list[Hunk] = []
        old_end = shift = 0
        while self._find_head():
            num_problems = len(self.problems)
            head_line = self.at + 1
            hunk = self._read_hunk()
            if hunk is None:
                break  # what follows would only be called stray
            hunks.append(hunk)
            if len(self.problems) > num_problems:
                continue
            self._check_content(hunk, head_line)
            if hunk.old_index < old_end:
                self._fail("E518", "overlaps the hunk before it, or stands out of order", head_line)
            elif hunk.new_index != hunk.old_index + shift:
                expected = hunk.old_index + shift + bool(hunk.new)
                message = f"new start {hunk.new_start} does not follow from the hunks before it"
                self._fail("E518", f"{message}: it must be {expected}", head_line)
            old_end = hunk.old_index + len(hunk.old)
            shift += hunk.delta
        for number, hunk in enumerate(hunks[:-1], 1):
            ends = (*hunk.old[-1:], *hunk.new[-1:])
            if not all(line.endswith(b"\n") for line in ends):
                self._fail("E516", f"hunk {number} ends the file, and another hunk follows", 0)
        return hunks

    def _find_head(self) -> bool:
        """Move to the next '@@' line, reporting the first line that stands in between."""
        stray = self.at
        while self.at < len(self.lines) and not self.lines[self.at].startswith(b"@@ "):
            self.at += 1
        if self.at > stray:
            self._explain_stray(stray)
            if self.problems[-1].code == "E514":
                return False
        return self.at < len(self.lines)

    def _explain_stray(self, at: int) -> None:
        line = self.lines[at]
        after = self.lines[at + 1] if at + 1 < len(self.lines) else b""
        if line.startswith((b"diff --git ", b"Index: ")) or (
            line.startswith(b"--- ") and after.startswith(b"+++ ")
        ):
            self._fail("E514", "a second file in one patch is refused", at + 1)
        elif re.match(rb"GIT binary patch|Binary files ", line):
            self._fail("E514", "a binary patch is refused", at + 1)
        elif re.fullmatch(rb"\d+(,\d+)?[acd]\r?\n", line):
            self._fail("E514", "an ed script is refused", at + 1)
        elif self._number and line[:1] in (b" ", b"+", b"-", b"\n", b"\r"):
            self._fail("E516", "more lines than the hunk's '@@' line counts", at + 1)
        else:
            text = line[:60].rstrip().decode(errors="replace")
            self._fail("E516", f"{text!r} is not part of a hunk", at + 1)

    def _read_hunk(self) -> Hunk | None:
        self._number += 1
        self._symbol = ""
        raw = self.lines[self.at]
        self.at += 1
        match = _HEAD.fullmatch(raw.rstrip(b"\r\n"))
        if match is None:
            text = raw[:60].rstrip().decode(errors="replace")
            self._fail("E516", f"{text!r} is not '@@ -a,b +c,d @@ SYMBOL'", self.at)
            return None
        old_count, new_count = (int(match[i]) if match[i] else 1 for i in (2, 4))
        symbol = (match[5] or b"").decode(errors="replace").strip()
        if _SYMBOL.fullmatch(symbol):
            self._symbol = symbol
        else:
            message = f"the '@@' line must end with the edited symbol, not {symbol!r}"
            self._fail("E519", message, self.at)
        lines = self._read_body(old_count, new_count, crlf=raw.endswith(b"\r\n"))
        return Hunk(int(match[1]), int(match[3]), tuple(lines), self._symbol)

    def _read_body(self, old_count: int, new_count: int, *, crlf: bool) -> list[bytes]:
        head_line = self.at
        old_left, new_left = old_count, new_count
        body: list[bytes] = []
        while self.at < len(self.lines) and (old_left > 0 or new_left > 0):
            line = self.lines[self.at]
            kind = line[:1]
            if kind in (b"\n", b"\r"):
                message = "an empty line in a hunk: its leading space was stripped"
                hint = "an editor or hook removed trailing white space; restore the line as ' '"
                self._fail("E517", message, self.at + 1, hint=hint)
                line, kind = b" " + line, b" "
            if kind not in (b" ", b"+", b"-"):
                break
            old_left -= kind != b"+"
            new_left -= kind != b"-"
            self.at += 1
            if self.at < len(self.lines) and self.lines[self.at].startswith(_NO_NEWLINE):
                # In a patch file whose own lines all end in CRLF, the CR is not the target's.
                line = line.removesuffix(b"\n")
                line = line.removesuffix(b"\r") if crlf else line
                self.at += 1
            body.append(line)
        if old_left or new_left:
            found = f"-{old_count - old_left} +{new_count - new_left}"
            message = f"wrong counts: the '@@' line says -{old_count} +{new_count}, found {found}"
            self._fail("E516", message, head_line)
        return body

    def _check_content(self, hunk: Hunk, line: int) -> None:
        if all(text[:1] == b" " for text in hunk.lines):
            self._fail("E515", "the hunk changes nothing", line)
        elif not hunk.old and (hunk.old_start, self._number) != (0, 1):
            self._fail("E515", "no context: nothing shows where the lines belong", line)
        if (hunk.old and not hunk.old_start) or (hunk.new and not hunk.new_start):
            self._fail("E516", "lines count from 1", line)
        for side in (hunk.old, hunk.new):
            if b"".join(side[:-1]).count(b"\n") < len(side) - 1:
                self._fail("E516", "a 'no newline' marker before the last line", line)
                return

    def _fail(self, code: str, message: str, line: int, *, hint: str = "") -> None:
        number = self._number or 1
        text = f"hunk {number}: {message}" if self._number else message
        self.problems.append(PatchProblem(code, text, line, number, self._symbol, hint))
