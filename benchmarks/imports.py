"""Import the patched megatron.core where there is no NPU: our modules' share, and what they bring.

    python benchmarks/imports.py

The share is the summed self time of `mindspeed.*` over the whole import, by `-X importtime`. Median
of several runs. Modules are compared with those that the pristine tree imports.
"""

import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from mindspeed_overlay.build import patch_files
from mindspeed_overlay.data import default_overlays, default_pins
from mindspeed_overlay.overlay import load_overlays
from mindspeed_overlay.pins import load_pins
from mindspeed_overlay.plan import Selection, make_plan
from mindspeed_overlay.source import open_source
from mindspeed_overlay.staging import stage_tree

ROUNDS = 5
LIMIT_SHARE = 0.02
TAG = "core_v0.16.1"
_LINE = re.compile(r"import time:\s+(\d+) \|\s+(\d+) \|\s*(\S+)")


def import_core(tree: Path) -> tuple[float, float, set[str]]:
    """(microseconds of our modules, of the whole import, top-level packages imported)."""
    code = "import sys, megatron.core; print(*{m.partition('.')[0] for m in sys.modules})"
    environment = {**os.environ, "PYTHONPATH": str(tree), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    command = [sys.executable, "-X", "importtime", "-c", code]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env=environment, cwd=tree
    )
    ours = whole = 0
    for line in done.stderr.splitlines():
        if match := _LINE.fullmatch(line):
            whole += int(match[1])
            ours += int(match[1]) if match[3].partition(".")[0] == "mindspeed" else 0
    return ours, whole, set(done.stdout.split())


def main() -> int:
    """Print the table; 1 when a limit is passed."""
    pins = load_pins(default_pins())
    overlays = load_overlays(default_overlays(), tags=tuple(r.tag for r in pins.releases))
    release = pins.get(TAG)
    source = open_source(release)
    plan = make_plan(overlays, pins, release, selection=Selection())
    with tempfile.TemporaryDirectory() as name:
        pristine, patched = Path(name) / "pristine", Path(name) / "patched"
        stage_tree(source.files, pristine)
        stage_tree(dict(patch_files(plan, source.files).files), patched)
        import_core(pristine)
        runs = [(import_core(pristine), import_core(patched)) for _ in range(ROUNDS)]
    share = statistics.median(ours / whole for _, (ours, whole, _) in runs)
    extra = runs[0][1][2] - runs[0][0][2] - {"mindspeed"}
    ours_ms = statistics.median(run[1][0] for run in runs) / 1000
    whole_s = statistics.median(run[1][1] for run in runs) / 1e6
    print("| what | value | limit |\n|---|---|---|")
    print(f"| import megatron.core, patched {TAG} | {whole_s:.2f} s | |")
    print(f"| self time of our modules | {ours_ms:.1f} ms | |")
    print(f"| share | {share:.2%} | {LIMIT_SHARE:.0%} |")
    print(f"| further packages imported | {', '.join(sorted(extra)) or 'none'} | none |")
    return int(share > LIMIT_SHARE or bool(extra))


if __name__ == "__main__":
    sys.exit(main())
