"""Measures what features are for: `python benchmarks/features.py [OVERLAY...] [--write]`.

Peak device memory and operator launches of one forward and backward pass, feature off and on, on
the simulated device. With --write the table goes into docs/features/<feature>.md between two marks.
"""

import argparse
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path = [entry for entry in sys.path if entry != str(Path(__file__).parent)]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests")]
os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")

from harness.runner import run_on_device  # noqa: E402  (after the paths are set)
from harness.trees import Trees  # noqa: E402
from harness.worker import Scenario  # noqa: E402

BEGIN, END = "<!-- measured by benchmarks/features.py -->", "<!-- end of measured -->"
RELEASE = "core_v0.16.1"
SCENARIOS = "features.measure_scenarios"


@dataclass(frozen=True)
class Measurement:
    """A scenario of `SCENARIOS` and the sizes that it is run with."""

    overlay: str
    scenario: str
    what: str
    tokens: tuple[int, ...]


MEASUREMENTS = (
    Measurement(
        "attention/flash-attention",
        "measure_attention",
        "DotProductAttention, causal, bf16, batch 1, 4 heads of width 64, 2 key heads",
        (256, 512, 1024),
    ),
    Measurement(
        "attention/fusion-attention-v2",
        "measure_second_version",
        "DotProductAttention, causal, bf16, batch 1, 4 heads of width 64, 2 key heads",
        (512,),
    ),
    Measurement(
        "attention/alibi",
        "measure_alibi",
        "ALiBi inside the operator beside its formula in plain torch (off), same sizes",
        (512,),
    ),
    Measurement("fusions/fused-rmsnorm", "measure_rmsnorm", "RMSNorm, bf16, width 1024", (512,)),
    Measurement(
        "fusions/fused-rope",
        "measure_rope",
        "rotary embedding of queries, bf16, batch 1, 4 heads of width 64",
        (512,),
    ),
    Measurement(
        "fusions/fused-softmax",
        "measure_softmax",
        "causal softmax of scores, bf16, batch 1, 4 heads",
        (512,),
    ),
    Measurement(
        "moe/token-permute",
        "measure_permute",
        "permute and unpermute, bf16, width 256, 8 experts, 2 for each token",
        (512,),
    ),
)


def measure(measurement: Measurement, trees: Trees) -> str:
    """The table of one feature, as Markdown."""
    keys = [(tokens, on) for tokens in measurement.tokens for on in (False, True)]
    scenarios = [
        Scenario(f"{SCENARIOS}:{measurement.scenario}", (("on", on), ("tokens", tokens)))
        for tokens, on in keys
    ]
    tree = trees.patched(RELEASE, (measurement.overlay,))
    results = dict(zip(keys, run_on_device(tree, scenarios)[0], strict=True))
    lines = [
        f"{measurement.what}; {RELEASE}, simulated device, one forward and backward pass:",
        "",
        "| Tokens | Peak memory off | on | Launches forward off | on | backward off | on |",
        "|---|---|---|---|---|---|---|",
    ]
    for tokens in measurement.tokens:
        off, on = results[tokens, False], results[tokens, True]
        peaks = [f"{found['peak_bytes'].item() / 2**20:.2f} MiB" for found in (off, on)]
        counts = [str(f[k].item()) for k in ("forward", "backward") for f in (off, on)]
        lines.append(f"| {tokens} | {' | '.join([*peaks, *counts])} |")
    return "\n".join(lines)


def write_table(page: Path, table: str) -> None:
    """Put a table between the marks of a page.

    Raises:
        ValueError: the page has no marks.
    """
    text = page.read_text("utf-8")
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} lacks the marks {BEGIN} and {END}")
    page.write_text(f"{head}{BEGIN}\n\n{table}\n\n{END}{tail}", "utf-8")


def main() -> None:
    """Measure the named features, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("overlays", nargs="*", help="ids; all by default")
    parser.add_argument("--write", action="store_true", help="write into docs/features/")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trees = Trees(Path(folder))
        for measurement in MEASUREMENTS:
            if options.overlays and measurement.overlay not in options.overlays:
                continue
            table = measure(measurement, trees)
            print(f"{measurement.overlay}\n\n{table}\n")
            if options.write:
                name = measurement.overlay.partition("/")[2]
                write_table(ROOT / "docs" / "features" / f"{name}.md", table)


if __name__ == "__main__":
    main()
