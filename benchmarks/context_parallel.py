"""What context parallelism sends, launches and holds: `python benchmarks/context_parallel.py`.

Runs one attention layer, forward and backward, on ranks of the simulated device, and prints what
each algorithm sent, launched and kept, beside the formula of
`mindspeed.core.context_parallel.costs`.
"""

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[1]
# A module `features` lies beside this script, and would hide the folder of that name in tests.
sys.path = [entry for entry in sys.path if entry != str(Path(__file__).parent)]
sys.path[:0] = [str(_ROOT / "tools"), str(_ROOT / "tests")]

from ascend_sim import ranks  # noqa: E402  (from this checkout)
from features.context_parallel.cp_case import Case  # noqa: E402
from features.context_parallel.cp_measures import measure  # noqa: E402
from harness.modules import import_file  # noqa: E402

RANKS = 4
SHAPE: dict[str, Any] = {
    "length": 512,
    "batch": 1,
    "heads": 8,
    "key_heads": 2,
    "width": 64,
    "value_width": 64,
}
_ROWS = SHAPE["length"] // RANKS * SHAPE["batch"] * SHAPE["width"] * 4  # one head of a rank
QUERIES, BLOCK = SHAPE["heads"] * _ROWS, 2 * SHAPE["key_heads"] * _ROWS
# Case; formula and its options; what the formula counts and lay there before, or the reverse: the
# output of Ulysses is traded back into a tensor of its own, which belongs to the layer behind.
ROWS: dict[str, tuple[dict[str, Any], str, dict[str, Any], int]] = {
    "ring": ({}, "ring", {}, QUERIES),
    "ring, fused merge": ({"fused_merge": True}, "ring", {}, QUERIES),
    "ring, BNSD": ({"bnsd": True}, "ring", {}, 0),
    "ring, cache half": ({"keep": "half"}, "ring", {"keep": "half"}, QUERIES),
    "ring, cache full": ({"keep": "full"}, "ring", {"keep": "full"}, QUERIES),
    "double ring, W = 2": (
        {"algorithm": "double_ring", "window": 2},
        "ring",
        {"window": 2},
        QUERIES,
    ),
    "kv-all-gather": ({"algorithm": "kv_allgather"}, "kv_allgather", {}, QUERIES + BLOCK),
    "ulysses": ({"algorithm": "ulysses"}, "ulysses", {}, -QUERIES),
    "hybrid 2 x 2": ({"algorithm": "hybrid"}, "hybrid", {"ulysses": 2}, -QUERIES),
}


@contextmanager
def lay_overlays() -> Iterator[str]:
    """A folder with the overlays' `mindspeed`, without Megatron."""
    with tempfile.TemporaryDirectory() as folder:
        overlays = _ROOT / "overlays"
        roots = sorted(overlays.glob("context-parallel/*/files"))
        for files in [overlays / "base/ascend/files", *roots]:
            shutil.copytree(files, folder, dirs_exist_ok=True)
        yield folder


def main() -> None:
    """Measure and print a table."""
    with lay_overlays() as folder:
        costs = import_file(Path(folder, "mindspeed/core/context_parallel/costs.py"))
        cases = [Case(**{"algorithm": "ring", "npu": True, **SHAPE, **row[0]}) for row in
                 ROWS.values()]  # fmt: skip
        server = ranks.server(path=[folder], preload=ranks.DEFAULT_PRELOAD)
        found = server.run(measure, cases, world_size=RANKS, timeout_s=300)[1]
    print(f"{RANKS} ranks, fp32, causal, {SHAPE}")
    print("Sent forward, backward; kept for the backward pass; each beside the formula of `costs`.")
    print()
    print("| algorithm | KiB sent | formula | messages | formula | KiB kept | formula | launches |"
          " KiB peak |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|")
    shape = costs.Shape(**SHAPE, element_bytes=4)
    for (name, (_, formula, options, before)), row in zip(ROWS.items(), found, strict=True):
        cost = getattr(costs, f"cost_{formula}")(shape, RANKS, **options)
        launches = sum(kind == "compute" for kind, _, _ in row["log"])
        kept = row["kept_bytes"] + before
        print(
            f"| {name} | {row['forward_bytes'] // 1024}, {row['backward_bytes'] // 1024} | "
            f"{cost.forward_bytes // 1024}, {cost.backward_bytes // 1024} | "
            f"{row['forward_messages']} + {row['backward_messages']} | "
            f"{cost.forward_messages} + {cost.backward_messages} | "
            f"{kept // 1024} | {cost.kept_bytes // 1024} | {launches} | "
            f"{row['both_peak_bytes'] // 1024} |"
        )


if __name__ == "__main__":
    main()
