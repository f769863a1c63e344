"""Context parallelism beside MindSpeed's functions, on ranks of the simulated device.

    python benchmarks/context_parallel_mindspeed.py --mindspeed FOLDER --megatron FOLDER [--write]

MINDSPEED is a checkout for Megatron core 0.12.1 (seen with its branch 26.1.0_core_r0.12.1),
MEGATRON the folder above a pristine `megatron` of that release. Neither is part of this repository.
The same queries, keys, values and gradient go through both; each side has its rows where its own
batches have them. --write puts the table into docs/benchmarks.md. Its adaptive algorithm is not
beside ours: what moves rows is compiled, and the rest ends with an error in a round in which a rank
has nothing to do.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[1]
sys.path[:1] = [str(_ROOT / "tools"), str(_ROOT / "tests"), str(_ROOT)]

import torch  # noqa: E402  (from this checkout)
from benchmarks.context_parallel import RANKS, SHAPE, lay_overlays  # noqa: E402
from benchmarks.run import describe_machine, write_section  # noqa: E402
from torch import Tensor  # noqa: E402

from ascend_sim import ranks  # noqa: E402
from features.context_parallel import cp_mindspeed  # noqa: E402
from features.context_parallel.cp_case import Case, own_rows  # noqa: E402
from features.context_parallel.cp_measures import measure  # noqa: E402

ROWS: dict[str, dict[str, Any]] = {
    "ring": {},
    "ring, overlap": {"lanes": 2},
    "ring, BNSD": {"bnsd": True},
    "ring, fused merge": {"fused_merge": True},
    "ring, cache half": {"keep": "half"},
    "ring, cache full": {"keep": "full"},
    "double ring, W = 2": {"algorithm": "double_ring", "window": 2},
    "ulysses": {"algorithm": "ulysses"},
    "hybrid 2 x 2": {"algorithm": "hybrid"},
    "kv-all-gather": {"algorithm": "kv_allgather"},
}
NOTES = """\
One message carries keys and values, one all-to-all queries, keys and values: copies into and out of
them are the launches that we have more. Our Ulysses also orders a zigzag of rows, and repeats two
key heads for four ranks twice, MindSpeed four times. With BNSD we keep turned queries, keys and
values; MindSpeed turns them again for every block. Statistics are kept once, MindSpeed keeps eight
copies. Where its batches have the rows in another order than ours, the difference is taken in the
order of the whole sequence."""
Found = list[list[dict[str, Any]]]
"""For each rank each case."""


def main() -> None:
    """Measure both sides and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--mindspeed", type=Path, required=True)
    parser.add_argument("--megatron", type=Path, required=True)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    cases = [Case(**{"algorithm": "ring", "npu": True, **SHAPE, **row}) for row in ROWS.values()]
    placed = [cp_mindspeed.place(case, RANKS) for case in cases]
    with lay_overlays() as folder:
        ours = ranks.server(path=[folder], preload=ranks.DEFAULT_PRELOAD).run(
            measure, cases, world_size=RANKS, timeout_s=150
        )
    environment = {"TORCHDYNAMO_DISABLE": "1"}
    theirs = ranks.server(preload=("harness.device:prepare",), env=environment).run(
        cp_mindspeed.measure,
        placed,
        str(options.mindspeed.resolve()),
        str(options.megatron.resolve()),
        world_size=RANKS,
        timeout_s=150,
    )
    text = make_table(cases, placed, ours, theirs)
    print(text)
    if options.write:
        title = f"{__doc__.splitlines()[0]}\n\n" if __doc__ else ""
        write_section("context_parallel_mindspeed", f"{title}{text}\n\n{describe_machine()}")


def make_table(cases: list[Case], placed: list[Case], ours: Found, theirs: Found) -> str:
    """Ours beside theirs, of the rank with the most of each."""
    lines = [
        f"{RANKS} ranks, fp32, {SHAPE}; each cell is ours / MindSpeed's, of the rank with the most",
        "",
        "| algorithm | KiB sent | messages | launches | KiB kept | KiB peak | largest difference |",
        "|---|---|---|---|---|---|---|",
    ]
    for index, name in enumerate(ROWS):
        mine, other = ([rank[index] for rank in side] for side in (ours, theirs))
        cells = [
            f"{_most(mine, keys) // unit} / {_most(other, keys) // unit}"
            for keys, unit in (
                (("forward_bytes", "backward_bytes"), 1024),
                (("forward_messages", "backward_messages"), 1),
                (("launches",), 1),
                (("kept_bytes",), 1024),
                (("both_peak_bytes",), 1024),
            )
        ]
        difference = find_difference(cases[index], placed[index], mine, other)
        lines.append(f"| {name} | {' | '.join(cells)} | {difference:.1e} |")
    return "\n".join([*lines, "", NOTES])


def _most(rows: list[dict[str, Any]], keys: tuple[str, ...]) -> int:
    for row in rows:
        row["launches"] = sum(kind == "compute" for kind, _, _ in row["log"])
    return max(sum(int(row[key]) for key in keys) for row in rows)


def find_difference(
    case: Case, placed: Case, ours: list[dict[str, Any]], theirs: list[dict[str, Any]]
) -> float:
    """Largest difference of output, dq, dk and dv, relative to the largest element of each."""
    worst = 0.0
    for index in range(4):
        mine = put_together(case, [row["tensors"][index] for row in ours])
        other = put_together(placed, [row["tensors"][index] for row in theirs])
        worst = max(worst, float((mine - other).abs().max() / other.abs().max()))
    return worst


def put_together(case: Case, parts: list[Tensor]) -> Tensor:
    """All rows from those of each rank."""
    whole = torch.cat(parts).new_zeros(case.length, *parts[0].shape[1:])
    for rank, part in enumerate(parts):
        whole[own_rows(case, rank, len(parts))] = part
    return whole


if __name__ == "__main__":
    main()
