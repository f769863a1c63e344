"""Which relative paths an overlay or a source may name."""

import re
import unicodedata
from functools import lru_cache

_GIT_SHORT_NAME = re.compile(r"git~\d+")


@lru_cache(maxsize=4096)
def explain_unsafe_path(path: str) -> str:
    """Why `path` may not be read, patched or written; empty when it may.

    A path is relative, in POSIX spelling, and names no part of a repository's own folder, in any
    spelling that a case-folding, NTFS or HFS+ file system takes for `.git`.
    """
    if not path:
        return "an empty path"
    if path.startswith("/"):
        return "an absolute path"
    if "\\" in path:
        return "a backslash in the path"
    if any(unicodedata.category(char) == "Cc" for char in path):
        return "a control character in the path"
    for part in path.split("/"):
        if part in ("", "."):
            return "an empty or '.' component"
        if part == "..":
            return "a '..' component"
        if names_git_folder(part):
            return f"{part!r} is a spelling of .git"
        if ":" in part:
            return "a ':' in the path (a drive or a stream)"
    return ""


def names_git_folder(part: str) -> bool:
    """Whether some file system takes the path component `part` for `.git`."""
    # HFS+ drops format characters, NTFS drops trailing dots and spaces and splits off streams.
    if not part.isascii():
        part = "".join(char for char in part if unicodedata.category(char) != "Cf")
    folded = part.casefold().split(":")[0].rstrip(" .")
    return folded == ".git" or _GIT_SHORT_NAME.fullmatch(folded) is not None
