"""Tracebacks that name the overlay behind each frame: of patched lines, and of whole new files.

    python -m mindspeed.traceback pretrain_gpt.py --num-layers 2 ...

runs a script as `python` would and prints such a traceback if it fails. A program that wants them
itself calls `install()` once. What came from where is read from `build.json` when the first
traceback is printed, not before.
"""

import json
import runpy
import sys
import traceback
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any

_ROOT = Path(__file__).resolve().parents[1]


@lru_cache(maxsize=1)
def _read_files() -> dict[str, Any]:
    """What the build recorded of each file; nothing where there is no record."""
    try:
        files: dict[str, Any] = json.loads((_ROOT / "mindspeed" / "build.json").read_text())[
            "files"
        ]
    except (OSError, ValueError, KeyError):
        return {}
    return files


def find_origin(path: str, line: int) -> str:
    """Which overlay, patch and hunk a line comes from; "" for upstream's and foreign lines.

    Args:
        path: a source file, as frames name it.
        line: from 1.
    """
    try:
        name = Path(path).resolve().relative_to(_ROOT).as_posix()
    except (ValueError, OSError):
        return ""
    record = _read_files().get(name, {})
    for first, last, overlay, patch, hunk in record.get("lines", ()):
        if first <= line <= last:
            return f"{overlay}, {patch}, hunk {hunk}"
    if record.get("overlays") and "lines" not in record:
        return f"{', '.join(record['overlays'])}, a file of its own"
    return ""


def format_exception(error: BaseException) -> str:
    """The usual traceback, chained exceptions included, with a remark under each patched frame."""
    shown = traceback.TracebackException.from_exception(error)
    pending = [shown]
    seen: set[int] = set()
    while pending:
        current = pending.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        for frame in current.stack:
            origin = find_origin(frame.filename, frame.lineno or 0)
            if origin:
                frame.name = f"{frame.name}  [{origin}]"
        chained = [current.__cause__, current.__context__]
        pending += [*filter(None, chained), *(getattr(current, "exceptions", None) or ())]
    return "".join(shown.format())


def install() -> None:
    """Print such tracebacks for what nobody catches, instead of Python's own."""
    previous = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        try:
            text = format_exception(error.with_traceback(trace))
        except Exception:  # the error itself must be seen, whatever is wrong here
            previous(kind, error, trace)
            return
        sys.stderr.write(text)

    sys.excepthook = show


def main() -> None:
    """Run the script that the command line names, with its arguments."""
    if len(sys.argv) < 2:
        sys.exit("usage: python -m mindspeed.traceback SCRIPT [ARGUMENT]...")
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    install()
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
