"""The header of a patch file: `Field: value` lines, an empty line, the reason.

`parse_patch` asks only for what applying needs. `check_header` holds a patch against the rules for
overlays (docs/overlay-format.md), where people review and port it.
"""

import datetime
import re
from collections.abc import Iterable, Mapping

from mindspeed_overlay.errors import Problem
from mindspeed_overlay.patch_model import Patch

FIELDS = (
    "Subject",
    "Feature",
    "Target",
    "Base-Blob",
    "Symbol",
    "Origin",
    "Forwarded",
    "Last-Update",
    "Remove-When",
    "Why-Large",
)
"""In canonical order. Only Base-Blob may appear more than once."""

MAX_CHANGED_LINES = 20
MAX_CONTEXT_LINES = 3

_FIELD = re.compile(r"([A-Za-z][A-Za-z-]*):(?: (.*))?")
_BLOB_VALUE = re.compile(r"\S+ [0-9a-f]{40}")
_REFRESH = "mindspeed-overlay refresh"


def read_header(
    lines: list[bytes],
) -> tuple[dict[str, tuple[str, ...]], str, list[tuple[int, str]]]:
    """Read everything before the diff.

    Args:
        lines: the patch file's lines before its `--- a/` line, with line ends.

    Returns:
        The fields, the reason, and what is wrong as (line from 1, message).
    """
    wrong: list[tuple[int, str]] = []
    text: list[str] = []
    for number, raw in enumerate(lines, 1):
        try:
            text.append(raw.decode().rstrip("\r\n"))
        except UnicodeDecodeError:
            wrong.append((number, "the header is not UTF-8"))
            text.append(raw.decode(errors="replace").rstrip("\r\n"))
    end = text.index("") if "" in text else len(text)
    fields: dict[str, tuple[str, ...]] = {}
    for number, line in enumerate(text[:end], 1):
        match = _FIELD.fullmatch(line)
        if match is None:
            wrong.append((number, f"{line[:60]!r} is not a 'Field: value' line"))
            continue
        key, value = match[1], (match[2] or "").strip()
        if key in fields and key != "Base-Blob":
            wrong.append((number, f"a second {key}"))
        fields[key] = (*fields.get(key, ()), value)
    return fields, "\n".join(text[end + 1 :]).strip("\n"), wrong


def write_header(fields: Mapping[str, tuple[str, ...]], reason: str) -> str:
    """The canonical text before the diff, with its empty lines.

    Raises:
        ValueError: a field or the reason would be read back as something else.
    """
    order = [key for key in FIELDS if key in fields] + sorted(set(fields) - set(FIELDS))
    pairs = [(key, value) for key in order for value in fields[key]]
    for key, value in pairs:
        if not _FIELD.fullmatch(f"{key}: {value}") or "\r" in value or value != value.strip():
            raise ValueError(f"not a header field: {key!r}: {value!r}")
    lines = [f"{key}: {value}".rstrip() for key, value in pairs]
    if "\r" in reason or reason != reason.strip("\n"):
        raise ValueError("the reason must not begin or end with an empty line, nor hold a CR")
    if any(starts_diff(line.encode()) for line in reason.split("\n")):
        raise ValueError("a line of the reason reads like the start of a diff")
    return "\n".join(lines) + "\n\n" + (f"{reason}\n\n" if reason else "")


def starts_diff(line: bytes) -> bool:
    """Whether the diff begins at `line`."""
    return line.startswith((b"--- ", b"diff --git ", b"@@ -"))


def check_header(patch: Patch, *, overlay: str, releases: Iterable[str]) -> list[Problem]:
    """What a patch's header says too little of, or wrongly.

    Args:
        patch: parsed, so its Target and Symbol are known to be right.
        overlay: the id of the overlay whose folder holds the patch.
        releases: the tags that this patch file serves.
    """
    messages = [
        *_find_missing(patch),
        *_check_values(patch, overlay=overlay),
        *_check_blobs(patch, releases=releases),
        *_check_size(patch),
    ]
    hint = f"`{_REFRESH} {overlay}` writes Target, Base-Blob and Symbol; edit the rest by hand"
    return [
        Problem(
            code="E511",
            message=f"{patch.name}: {message}",
            overlay=overlay,
            patch=patch.name,
            path=patch.target,
            hint=hint,
        )
        for message in messages
    ]


def _find_missing(patch: Patch) -> list[str]:
    needed = [key for key in FIELDS if key != "Why-Large"]
    missing = [f"no {key}" for key in needed if not any(patch.header.get(key, ()))]
    unknown = [f"unknown field {key}" for key in patch.header if key not in FIELDS]
    return missing + unknown + ([] if patch.reason else ["no reason below the header"])


def _check_values(patch: Patch, *, overlay: str) -> list[str]:
    messages = []
    feature = patch.header.get("Feature", (overlay,))[0]
    if feature not in ("", overlay):
        messages.append(f"Feature is {feature}, the folder is {overlay}")
    name = name_patch(patch.target)
    if patch.name.rpartition("/")[2] != name:
        messages.append(f"a patch of {patch.target} is named {name}")
    date = patch.header.get("Last-Update", ("",))[0]
    try:
        datetime.date.fromisoformat(date or "2000-01-01")
    except ValueError:
        messages.append(f"Last-Update {date} is not a YYYY-MM-DD date")
    return messages


def _check_blobs(patch: Patch, *, releases: Iterable[str]) -> list[str]:
    values = patch.header.get("Base-Blob", ())
    wrong = [
        f"Base-Blob {value!r} is not 'TAG BLOB', the blob in 40 hex digits"
        for value in values
        if value and not _BLOB_VALUE.fullmatch(value)
    ]
    if len(patch.base_blobs) != len(values):
        wrong.append("two Base-Blob lines for one release")
    missing = [tag for tag in releases if tag not in patch.base_blobs]
    return wrong + [f"no Base-Blob for {tag}" for tag in missing if values]


def _check_size(patch: Patch) -> list[str]:
    messages = []
    count = patch.num_changed_lines
    if count > MAX_CHANGED_LINES and not any(patch.header.get("Why-Large", ())):
        messages.append(f"{count} changed lines, over {MAX_CHANGED_LINES}, and no Why-Large")
    for number, hunk in enumerate(patch.hunks, 1):
        kinds = b"".join(line[:1] for line in hunk.lines)
        lead = len(kinds) - len(kinds.lstrip(b" "))
        trail = len(kinds) - len(kinds.rstrip(b" "))
        if max(lead, trail) > MAX_CONTEXT_LINES:
            messages.append(
                f"hunk {number} has over {MAX_CONTEXT_LINES} lines of context on a side"
            )
    return messages


def name_patch(target: str) -> str:
    """The file name of a patch: its target, dotted (`a/b.py` gives `a.b.patch`)."""
    return target.removesuffix(".py").replace("/", ".") + ".patch"
