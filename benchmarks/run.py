"""Run the benchmarks and write docs/benchmarks.md: one section each, with machine and date.

    python benchmarks/run.py             all that need nothing but PyPI
    python benchmarks/run.py build apply these; the other sections stay as they are

A section is what the benchmark printed. Benchmarks that need other people's source trees say so in
their first lines and are named explicitly.
"""

import datetime
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
PAGE = FOLDER.parent / "docs" / "benchmarks.md"
ALWAYS = ("build", "apply", "imports", "simulated_device")
HEAD = """# Benchmarks

Each section is what one command printed: `python benchmarks/NAME.py`; `python benchmarks/run.py`
rewrites them. Peers run beside ours in the same run, so read the ratios; absolute times are those
of the machine named with each section.
"""


def describe_machine() -> str:
    """Processor count and architecture, Python, and the date."""
    today = datetime.datetime.now(tz=datetime.UTC).date()
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores, {platform.machine()}, Python {platform.python_version()}, {today}"


def read_sections(text: str) -> dict[str, str]:
    """The page's sections by benchmark name."""
    return dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))


def run_benchmark(name: str) -> tuple[str, int]:
    """A section's text, and the exit code: 1 where a limit is passed."""
    path = FOLDER / f"{name}.py"
    title = path.read_text("utf-8").split('"""')[1].strip().splitlines()[0]
    done = subprocess.run(
        [sys.executable, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(FOLDER.parent / "tools")},
    )
    print(done.stdout, flush=True)
    return f"{title}\n\n{done.stdout.strip()}\n\n{describe_machine()}", done.returncode


def write_section(name: str, text: str) -> None:
    """Put a benchmark's section into the page; the others stay as they are."""
    sections = read_sections(PAGE.read_text("utf-8")) if PAGE.exists() else {}
    sections[name] = f"\n{text.strip()}\n\n"
    body = "".join(f"## {key}\n{sections[key]}" for key in sorted(sections))
    PAGE.write_text(f"{HEAD}\n{body}".rstrip() + "\n", "utf-8")


def main() -> int:
    """Run what is asked for and rewrite its sections."""
    names = sys.argv[1:] or list(ALWAYS)
    codes = []
    for name in names:
        print(f"== {name}", flush=True)
        text, code = run_benchmark(name)
        codes.append(code)
        write_section(name, text)
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
