"""Progress on a terminal: one bar for a download, one for a clone. Silent anywhere else."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache

Report = Callable[[int, int], None]
"""Called with what is done and what there is to do (0 where that is unknown)."""

_RAW = re.compile(r"Progress (\d+) of (\d+)")


@contextmanager
def show_bar(title: str, *, visible: bool) -> Iterator[Report]:
    """A bar on standard error while the body runs, if `visible` and that is a terminal."""
    if not visible or not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)

        def report(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total or None)

        yield report


def run_pip(
    command: list[str], *, cwd: str, env: Mapping[str, str], title: str = ""
) -> tuple[int, str]:
    """Run a pip command, with a bar if it has a title; returns its status and what it said."""
    raw = ["--progress-bar", "raw"] if _pip_reports_raw() else []
    with show_bar(title, visible=bool(title)) as report:
        process = subprocess.Popen(
            [*command, *raw],
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
        said = []
        with process:
            for line in process.stdout or ():
                if match := _RAW.match(line):
                    report(int(match[1]), int(match[2]))
                else:
                    said.append(line)
    return process.returncode, "".join(said)


@cache
def _pip_reports_raw() -> bool:
    """Whether this pip knows `--progress-bar raw` (24.1 and later)."""
    from importlib.metadata import version

    numbers = re.findall(r"\d+", version("pip"))
    return [int(n) for n in numbers[:2]] >= [24, 1]
