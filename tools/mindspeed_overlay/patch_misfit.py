"""Say why a hunk's old text is nowhere in its symbol. Runs only on failure, so it may be slow."""

from mindspeed_overlay.patch_model import Hunk, find_all


def explain_misfit(lines: list[bytes], hunk: Hunk, span: tuple[int, int] | None) -> tuple[str, str]:
    """A stable code, and a clause that continues "hunk 1 of 2 does not fit FILE:LINE: it ..."."""
    if (ends := _explain_line_ends(lines, hunk)) is not None:
        return "E504", ends
    elsewhere = [at + 1 for at in find_all(lines, hunk.old)]
    found = f"; its old text stands outside it, at {_name_lines(elsewhere)}" if elsewhere else ""
    if span is None:
        return "E507", f"needs {hunk.symbol}, which the file does not define{found}"
    loose = find_all([*map(_squeeze, lines)], [*map(_squeeze, hunk.old)])
    if loose and not elsewhere:
        where = _name_lines([at + 1 for at in loose])
        return "E502", f"finds its old text only with other white space, at {where}"
    return "E502", _show_nearest(lines, hunk, span) + found


def _squeeze(line: bytes) -> bytes:
    """A line without white space, but still with or without its end."""
    return b"".join(line.split()) + b"\n" * line.endswith(b"\n")


def _name_lines(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "")
    return f"line {shown}" if len(numbers) == 1 else f"lines {shown}"


def _explain_line_ends(lines: list[bytes], hunk: Hunk) -> str | None:
    hunk_crlf = [line.endswith(b"\r\n") for line in hunk.old if line.endswith(b"\n")]
    file_crlf = [line.endswith(b"\r\n") for line in lines if line.endswith(b"\n")]
    if not hunk_crlf or not file_crlf or any(hunk_crlf) == any(file_crlf):
        return None
    hunk_ends, file_ends = ("CRLF", "LF") if any(hunk_crlf) else ("LF", "CRLF")
    return f"has {hunk_ends} line ends, the file has {file_ends}"


def _show_nearest(lines: list[bytes], hunk: Hunk, span: tuple[int, int]) -> str:
    """Name the place of the symbol that agrees with the most lines, and its first difference."""
    best, best_at = 0, hunk.old_index
    for at in range(max(span[0] - len(hunk.old), 0), span[1]):
        agreeing = sum(map(bytes.__eq__, lines[at : at + len(hunk.old)], hunk.old))
        if agreeing > best:
            best, best_at = agreeing, at
    for k, wanted in enumerate(hunk.old):
        found = lines[best_at + k] if best_at + k < len(lines) else b""
        if found != wanted:
            number = best_at + k + 1
            return f"expects {_quote(wanted)} at line {number}, where {_quote(found)} stands"
    return "does not end the file as it was recorded"


def _quote(line: bytes) -> str:
    if not line:
        return "the end of the file"
    text = line.removesuffix(b"\n").decode(errors="backslashreplace")
    shown = text if len(text) <= 70 else text[:67] + "..."
    return f"`{shown}`" + ("" if line.endswith(b"\n") else " without a line end")
