"""Port other people's patches, against git's 3-way merge of the same files.

    python benchmarks/port_foreign.py --git MEGATRON --patches FOLDER --from core_v0.15.0rc5 \\
        --to core_v0.16.0 --to core_v0.17.0 --to core_v0.18.0 --to core_v0.19.0

MEGATRON is a clone of Megatron-LM with its history (or $MEGATRON_GIT), FOLDER somebody's patches, a
file or a folder of files. Neither is part of this repository. A patch counts as carried if every
edit of it was carried without a hand and the gate finds nothing in its file that the patched base
did not have; the edits that conflict are left out of what is gated. Git's 3-way is `git merge-file`
on base, edited and new file, and counts as clean if it leaves no conflict, whatever it means.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from mindspeed_overlay.apply import apply_patches, land_patches
from mindspeed_overlay.data import default_pins
from mindspeed_overlay.errors import Problem
from mindspeed_overlay.gate import check_gate
from mindspeed_overlay.overlay import load_overlays
from mindspeed_overlay.patch import parse_patch
from mindspeed_overlay.pins import load_pins
from mindspeed_overlay.port.carry import same_meaning
from mindspeed_overlay.port.engine import Job, Ported, run_port
from mindspeed_overlay.port.history import explain_conflicts
from mindspeed_overlay.port.imports import import_diffs, read_folder, write_imported
from mindspeed_overlay.port.model import CARRIED
from mindspeed_overlay.port.sources import extend_pins
from mindspeed_overlay.port.threads import PatchResult
from mindspeed_overlay.port.trees import Tree, list_tags_between, open_commit

OVERLAY = "foreign/all"


def main() -> None:
    """Print the table, and with -v each patch that was not carried, and why."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--git", type=Path, default=os.environ.get("MEGATRON_GIT"))
    parser.add_argument("--patches", type=Path, required=True)
    parser.add_argument("--from", dest="first", required=True)
    parser.add_argument("--to", dest="targets", action="append", required=True)
    parser.add_argument(
        "--answer",
        metavar="TAG=FILE",
        action="append",
        default=[],
        help="their authors' own port to a release, to compare with",
    )
    parser.add_argument("-v", "--verbose", action="store_true")
    options = parser.parse_args()
    if options.git is None:
        sys.exit("give a clone of Megatron-LM: --git PATH or $MEGATRON_GIT")
    version = subprocess.run(["git", "--version"], capture_output=True, text=True, check=True)
    print(f"{version.stdout.strip()}, Python {sys.version.split()[0]}")
    answers = dict(answer.split("=", 1) for answer in options.answer)
    base = open_commit(options.git, options.first)
    imported = import_diffs(
        [*read_folder(options.patches)],
        base.files,
        overlay=OVERLAY,
        tag=base.tag,
        today="2000-01-01",
        origin=options.patches.name,
    )
    print(f"{len(imported.patches)} patches, {len(imported.files)} new files")
    print("| release | 3-way clean | carried | found wrong by the gate | outcomes | seconds |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        overlays = Path(folder) / "overlays"
        write_imported(imported, overlays, overlay=OVERLAY, tag=base.tag)
        known: list[Problem] | None = None
        for target in options.targets:
            ported, seconds = port(options.git, base, target, overlays)
            if known is None:
                known = gate(base.files, edit_base(ported, base), imported.files)
            report(ported, known, imported.files, seconds, options.git if options.verbose else None)
            if target in answers:
                compare(ported, answers[target])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory: {peak:.0f} MiB")


def port(repository: Path, base: Tree, target: str, overlays: Path) -> tuple[Ported, float]:
    """Carry the patches to a release, step by step; gives the outcome and the seconds."""
    begun = time.perf_counter()
    steps = list_tags_between(repository, base.tag, target)
    trees = [base, *(open_commit(repository, name) for name in (*steps, target))]
    pins = extend_pins(load_pins(default_pins()), [tree.release for tree in trees])
    tags = tuple(release.tag for release in pins.releases)
    job = Job(overlays=load_overlays(overlays, tags=tags), pins=pins, trees=trees, first=base.tag)
    return run_port(job), time.perf_counter() - begun


def edit_base(ported: Ported, base: Tree) -> dict[str, bytes]:
    """The base with every patch."""
    overlay = ported.job.overlays.get(OVERLAY)
    patches = overlay.patches_for(base.tag, ported.job.order)
    return apply_patches(
        base.files, [(OVERLAY, parse_patch(data, name=name)) for name, data in patches.items()]
    )


def gate(
    pristine: Mapping[str, bytes], edited: Mapping[str, bytes], files: Mapping[str, bytes]
) -> list[Problem]:
    """What the gate finds in an edited tree with the new files."""
    after = {**edited, **files}
    changed = [path for path in after if pristine.get(path) != after[path]]
    return check_gate(pristine, after, python="3.10", touched=dict.fromkeys(changed, (OVERLAY,)))


def report(
    ported: Ported,
    known: list[Problem],
    files: Mapping[str, bytes],
    seconds: float,
    repository: Path | None,
) -> None:
    """One line of the table, and what was not carried."""
    new = ported.job.new
    edited = dict(new.files)
    for patch in ported.patches:
        if patch.outcome == "conflict":
            edited[patch.target] = patch.partial
        elif patch.patch is not None:
            edited[patch.target] = patch.after
    old = {(p.code, p.path, p.symbol, describe(p)) for p in known}
    found = [
        p
        for p in gate(new.files, edited, files)
        if (p.code, p.path, p.symbol, describe(p)) not in old
    ]
    wrong = {problem.path for problem in found}
    carried = [p for p in ported.patches if p.outcome in CARRIED and p.target not in wrong]
    rejected = [p for p in ported.patches if p.outcome in CARRIED and p.target in wrong]
    clean = sum(merges_cleanly(patch, new) for patch in first_of_each(ported))
    counts = Counter(patch.outcome for patch in ported.patches)
    outcomes = ", ".join(f"{count} {name}" for name, count in counts.most_common())
    num = len({p.name for p in carried} - {p.name for p in ported.patches if p not in carried})
    row = (new.tag, clean, num, len(rejected), outcomes, f"{seconds:.0f}")
    print("| " + " | ".join(map(str, row)) + " |", flush=True)
    if repository is None:
        return
    for problem in found:
        print(f"  gate: {problem.code} {problem.message}")
    explained = explain_conflicts(ported, repository)
    for patch in explained.patches:
        if patch.is_open:
            print(f"  {patch.outcome}: {patch.target} {'; '.join(patch.notes)}")
        for piece in patch.pieces:
            if piece.outcome not in ("exact", "offset", "merged", "re-anchored"):
                since = f"since {piece.since}"
                print(f"    {patch.target} {piece.symbol}: {piece.outcome} {since} {piece.note}")
                for commit in piece.commits[:1]:
                    print(f"      {commit}")


def compare(ported: Ported, answer: str) -> None:
    """How many files end in the same statements as in the authors' own port."""
    new = ported.job.new
    diffs = [*read_folder(Path(answer))]
    theirs = import_diffs(
        diffs, new.files, overlay=OVERLAY, tag=new.tag, today="2000-01-01", origin=answer
    )
    forms = [parse_patch(data, name=name) for name, data in theirs.patches.items()]
    wanted = {form.target: apply_patches(new.files, [(OVERLAY, form)]) for form in forms}
    ours = {p.target: p.after for p in ported.patches if p.outcome in CARRIED and p.patch}
    same = [t for t, data in ours.items() if t in wanted and same_meaning(data, wanted[t][t])]
    gone = {p.target for p in ported.patches if p.outcome in CARRIED and not p.patch} - {*wanted}
    print(
        f"  of {len(ours)} files carried, {len({*ours} & {*wanted})} are in the authors' port of "
        f"{len(wanted)} too; {len(same)} end in the same statements; "
        f"{len(gone)} dropped or absorbed in both"
    )
    for target in sorted({*ours} - {*same}):
        print(f"  differs from the authors' port: {target}")


def describe(problem: Problem) -> str:
    """A problem's sentence without its line."""
    return problem.message.partition("): ")[2]


def first_of_each(ported: Ported) -> list[PatchResult]:
    """One result for each patch file, with the texts of the base release."""
    found: dict[str, PatchResult] = {}
    for patch in ported.patches:
        found.setdefault(patch.name, patch)
    overlay = ported.job.overlays.get(OVERLAY)
    base = ported.job.trees[0]
    results = []
    for name, data in overlay.patches_for(base.tag, ported.job.order).items():
        form = parse_patch(data, name=name)
        landing = land_patches(base.files, [(OVERLAY, form)])[0]
        texts = (landing.before, landing.applied.data)
        results.append(replace(found[name], target=form.target, base=texts[0], edited=texts[1]))
    return results


def merges_cleanly(patch: PatchResult, new: Tree) -> bool:
    """Whether git's 3-way leaves no conflict."""
    if patch.target not in new.files:
        return False
    with tempfile.TemporaryDirectory() as folder:
        places = [Path(folder) / name for name in ("new", "base", "edited")]
        for place, data in zip(
            places, (new.files[patch.target], patch.base, patch.edited), strict=True
        ):
            place.write_bytes(data)
        command = ["git", "merge-file", "-p", *map(str, places)]
        done = subprocess.run(command, capture_output=True, check=False)
    return done.returncode == 0


if __name__ == "__main__":
    main()
