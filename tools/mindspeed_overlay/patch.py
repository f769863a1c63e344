"""Patch files: bytes in, bytes out, with an own parser and a canonical serializer."""

from collections.abc import Iterator

from mindspeed_overlay.patch_diff import make_patch
from mindspeed_overlay.patch_header import check_header, name_patch, write_header
from mindspeed_overlay.patch_model import MODULE_SYMBOL, Hunk, Patch, invert_patch, split_lines
from mindspeed_overlay.patch_parse import parse_patch

__all__ = [
    "MODULE_SYMBOL",
    "Hunk",
    "Patch",
    "check_header",
    "invert_patch",
    "make_patch",
    "name_patch",
    "parse_patch",
    "serialize_patch",
    "split_lines",
]


def serialize_patch(patch: Patch) -> bytes:
    """The canonical bytes of a patch: the same value always gives the same bytes.

    `parse_patch` of the result gives the patch back. Target and Symbol are written from the patch
    itself, whatever its header says.

    Raises:
        ValueError: the header or the reason can't be written so that it is read back the same.
    """
    fields = {
        **patch.header,
        "Target": (patch.target,),
        "Symbol": (", ".join(patch.symbols),),
    }
    head = write_header(fields, patch.reason)
    names = f"--- a/{patch.target}\n+++ b/{patch.target}\n"
    return (head + names).encode() + b"".join(
        part for hunk in patch.hunks for part in _write_hunk(hunk)
    )


def _write_hunk(hunk: Hunk) -> Iterator[bytes]:
    old = _write_range(hunk.old_start, len(hunk.old))
    new = _write_range(hunk.new_start, len(hunk.new))
    yield f"@@ -{old} +{new} @@ {hunk.symbol}\n".encode()
    for line in hunk.lines:
        yield line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n"


def _write_range(start: int, count: int) -> str:
    return f"{start}" if count == 1 else f"{start},{count}"
