"""Megatron's own unit tests, on the pristine and on the patched tree.

    python benchmarks/upstream_tests.py REPOSITORY [--release TAG] [--ranks 1] [--only TEXT]
    python benchmarks/upstream_tests.py REPOSITORY --table

REPOSITORY is a Megatron-LM checkout or mirror. Each test file runs in processes of its own, on the
simulated device, on three trees: pristine, patched with every option off, and patched with the
first layer's options on. What is done is kept in --state and not done again. Nothing that passes
on the pristine tree may fail on a patched one: the exit code is 1 if something does.
"""

import argparse
import datetime
import io
import json
import os
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

_ROOT = Path(__file__).parents[1]
# A module `features` lies beside this script, and would hide the folder of that name in tests.
sys.path = [entry for entry in sys.path if entry != str(Path(__file__).parent)]
sys.path[:0] = [str(_ROOT / "tools"), str(_ROOT / "tests")]

from ascend_sim import ranks  # noqa: E402  (from this checkout)
from harness.trees import GIT_VARIABLE, Trees  # noqa: E402

OPTIONS = ("use_flash_attn", "use_fused_rmsnorm", "use_fused_rotary_pos_emb", "use_fused_swiglu")
SIDES = {"pristine": (), "off": (), "on": OPTIONS}
PARALLEL = ("tensor_parallel", "pipeline_parallel", "transformer", "distributed")
"""The folders that `--ranks 8` runs; one rank runs everything."""
_WORST = ("passed", "skipped", "failed", "error", "unfinished")


def main() -> int:
    """Run what is missing, or print the table; 1 where a patched tree fails what passes."""
    words = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    words.add_argument("repository", type=Path)
    words.add_argument("--release", default="core_v0.16.1")
    words.add_argument("--ranks", type=int, default=1)
    words.add_argument("--only", default="", help="files whose path contains this")
    words.add_argument("--limit-s", type=float, default=300, help="for one file on one tree")
    words.add_argument("--state", type=Path, default=Path("upstream-tests"))
    words.add_argument("--table", action="store_true", help="print what is known, run nothing")
    given = words.parse_args()
    state = given.state.resolve() / f"{given.release}-{given.ranks}"
    if not given.table:
        run_missing(given, state)
    return print_table(state)


def run_missing(given: argparse.Namespace, state: Path) -> None:
    """Run every chosen file on every side that has no result yet."""
    os.environ[GIT_VARIABLE] = str(given.repository.resolve())
    root = extract_tests(given.repository, given.release, state)
    trees = Trees(state.parent / "trees")
    folders = {
        "pristine": trees.pristine(given.release, tree="full"),
        "off": trees.patched(given.release, tree="full"),
    }
    folders["on"] = folders["off"]
    files = [p.relative_to(root) for p in sorted(root.glob("tests/unit_tests/**/test_*.py"))]
    files = [file for file in files if given.only in str(file) and _is_wanted(file, given.ranks)]
    with ranks.ForkServer(preload=("harness.device:prepare", "pytest"), path=_paths()) as server:
        for number, file in enumerate(files, 1):
            for side, options in SIDES.items():
                report = state / "reports" / side / f"{str(file).replace('/', '.')}"
                if (done := report.with_suffix(".json")).exists():
                    continue
                print(f"[{number}/{len(files)}] {side} {file}", file=sys.stderr, flush=True)
                report.parent.mkdir(parents=True, exist_ok=True)
                for old in report.parent.glob(f"{report.name}.[0-9]*"):
                    old.unlink()
                try:
                    server.run(
                        "upstream_file:run_file",
                        *(str(folders[side]), str(root), str(file), str(report), options),
                        world_size=given.ranks,
                        backend=None,
                        timeout_s=given.limit_s,
                    )
                    error = ""
                except ranks.RankError as failure:
                    error = str(failure)[:2000]
                    print(error, file=sys.stderr)
                outcomes = read_outcomes(report.parent.glob(f"{report.name}.[0-9]*"))
                today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
                result = {"date": today, "file": str(file), "error": error, "tests": outcomes}
                done.write_text(json.dumps(result, indent=1))


def _is_wanted(file: Path, num_ranks: int) -> bool:
    return num_ranks == 1 or file.parts[2] in PARALLEL


def _paths() -> list[str]:
    return [str(_ROOT / "tools"), str(_ROOT / "tests"), str(Path(__file__).parent)]


def extract_tests(repository: Path, release: str, state: Path) -> Path:
    """The release's tests and scripts without its `megatron`, which would hide the tree's."""
    root = state / "checkout"
    if not root.is_dir():
        command = ["git", "-C", str(repository), "archive", release, "--", ".", ":!megatron"]
        packed = subprocess.run(command, check=True, capture_output=True).stdout
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(root, filter="data")
    return root


def read_outcomes(reports: Iterable[Path]) -> dict[str, list[str]]:
    """Each test's outcome and reason: the last of a rank, the worst of all ranks."""
    worst: dict[str, list[str]] = {}
    for path in reports:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for test, (outcome, reason) in {test: said for test, *said in lines}.items():
            known = worst.get(test, ["passed", ""])
            if test not in worst or _WORST.index(outcome) > _WORST.index(known[0]):
                worst[test] = [outcome, reason]
    return worst


def print_table(state: Path) -> int:
    """A row for each folder, then every test that the patches broke, with the reason."""
    found = {side: _read_side(state / "reports" / side) for side in SIDES}
    both = [test for test in found["pristine"] if test in found["off"] or test in found["on"]]
    folders = sorted({_folder(test) for side in found.values() for test in side})
    print(
        "| folder | pristine | off | on | passes only patched | broken |\n|---|---|---|---|---|---|"
    )
    broken: list[str] = []
    for folder in [*folders, "all"]:
        tests = {
            side: {t: o for t, o in known.items() if folder in ("all", _folder(t))}
            for side, known in found.items()
        }
        counts = [Counter(o[0] for o in known.values())["passed"] for known in tests.values()]
        here = [t for t in both if folder in ("all", _folder(t))]
        lost = [t for t in here if _is_lost(found, t)]
        gained = sum(
            outcome[0] == "passed" and found["pristine"].get(test, [""])[0] != "passed"
            for test, outcome in tests["off"].items()
        )
        shown = [f"{n} of {len(known)}" for n, known in zip(counts, tests.values(), strict=True)]
        print(f"| {folder} | {' | '.join(shown)} | {gained} | {len(lost)} |")
        broken = lost
    for test in broken:
        for side in ("off", "on"):
            outcome, reason = found[side].get(test, ["absent", ""])
            if outcome not in ("passed", "absent"):
                print(f"\n{side}: {test}: {outcome}\n{reason}")
    return int(bool(broken))


def _is_lost(found: dict[str, dict[str, list[str]]], test: str) -> bool:
    if found["pristine"][test][0] != "passed":
        return False
    return any(found[side].get(test, ["passed"])[0] != "passed" for side in ("off", "on"))


def _read_side(folder: Path) -> dict[str, list[str]]:
    files = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    return {test: outcome for file in files for test, outcome in file["tests"].items()}


def _folder(test: str) -> str:
    parts = test.partition("::")[0].split("/")
    return parts[2] if len(parts) > 3 else "(top)"


if __name__ == "__main__":
    sys.exit(main())
