"""Leave one release out: port every overlay to it from the release before, and compare.

For each pinned release the forms that were written for it are hidden, and the forms of the release
before are carried to it. A patch is scored where its older form does not apply as it is. It counts
as carried if the porter wrote a form without a hand and the gate let it through, and as equal if
that form leaves the same statements as the one in the repository. Where the porter gave up, the
repository's form takes the place, so that the rest can be gated. Forms that have no older one
(files new in the release) are not scored and listed apart.

    python benchmarks/port.py [--release TAG] [--markdown]
"""

import argparse
import math
import resource
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from mindspeed_overlay.apply import land_patches
from mindspeed_overlay.data import default_overlays, default_pins
from mindspeed_overlay.fingerprint import fingerprint_symbols
from mindspeed_overlay.overlay import Overlay, OverlaySet, load_overlays
from mindspeed_overlay.patch import parse_patch
from mindspeed_overlay.pins import Pins, load_pins
from mindspeed_overlay.port.carry import apply_exactly, same_meaning
from mindspeed_overlay.port.engine import Job, Ported, run_port
from mindspeed_overlay.port.model import CARRIED
from mindspeed_overlay.port.threads import PatchResult
from mindspeed_overlay.port.trees import Tree, open_pinned


@dataclass(frozen=True)
class Score:
    """One scored patch."""

    release: str
    overlay: str
    target: str
    outcome: str
    carried: bool
    equal: bool
    drifted: int
    why: str = ""


def main() -> None:
    """Print the table, what was not carried or differs, time and memory."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--overlays", type=Path, default=default_overlays())
    parser.add_argument("--release", action="append", default=[])
    parser.add_argument("--source", default="pypi", help="git:PATH scores the full tree")
    parser.add_argument("--online", action="store_true", help="fetch releases that are not cached")
    options = parser.parse_args()
    pins = load_pins(default_pins())
    tags = tuple(release.tag for release in pins.releases)
    overlays = load_overlays(options.overlays, tags=tags)
    trees = [open_pinned(r, spec=options.source, offline=not options.online) for r in pins.releases]
    for tree in trees:
        len(tree.files)  # read now: fetching is not what is timed
    scores: list[Score] = []
    fresh, times = 0, []
    for old, new in pairwise(trees):
        if options.release and new.tag not in options.release:
            continue
        begun = time.perf_counter()
        ported, failures = leave_out(pins, overlays, old, new)
        times.append((new.tag, time.perf_counter() - begun))
        found = [*score(ported, failures, overlays, old, new)]
        scores += found
        fresh += count_fresh(overlays, tags, old, new)
    print_table(scores, tags)
    print(f"forms for files without an older form, not scored: {fresh}")
    for tag, seconds in times:
        print(f"all overlays to {tag}: {seconds:.1f} s")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory, {len(trees)} releases held: {peak:.0f} MiB")
    for item in scores:
        if not (item.carried and item.equal):
            state = "not carried" if not item.carried else "differs"
            print(
                f"{state}: {item.release} {item.overlay} {item.target} ({item.outcome}) {item.why}"
            )


def leave_out(
    pins: Pins, overlays: OverlaySet, old: Tree, new: Tree
) -> tuple[Ported, set[tuple[str, str]]]:
    """Port to `new` with its forms hidden; then again with those that failed given."""
    tags = tuple(release.tag for release in pins.releases)
    hidden = tuple(
        replace(o, patch_sets={t: s for t, s in o.patch_sets.items() if t != new.tag})
        for o in overlays.overlays
    )
    both = [o.id for o in overlays.overlays if o.serves(old.tag, tags) and o.serves(new.tag, tags)]
    job = Job(
        overlays=OverlaySet(hidden, overlays.revision),
        pins=pins,
        trees=[old, new],
        first=old.tag,
        ids=tuple(both),
    )
    ported = run_port(job)
    failed = [p for o in ported.open for p in o.patches if p.is_open]
    if not failed:
        return ported, set()
    given = dict(job.resolutions)
    for patch in failed:
        overlay = overlays.get(patch.overlay)
        after = read_reference(overlay, patch.target, patch.new, new, tags)
        given[patch.overlay, patch.target] = after
    failures = {(patch.overlay, patch.name) for patch in failed}
    return run_port(replace(job, resolutions=given)), failures


def read_reference(
    overlay: Overlay, target: str, base: bytes, tree: Tree, tags: tuple[str, ...]
) -> bytes:
    """`base` with the repository's form for a release; `base` where it has none."""
    for name, data in overlay.patches_for(tree.tag, tags).items():
        patch = parse_patch(data, name=name)
        if patch.target == target and target in tree.files:
            landing = land_patches({target: base}, [(overlay.id, patch)])[0]
            return landing.applied.data
    return base


def score(
    ported: Ported, failures: set[tuple[str, str]], overlays: OverlaySet, old: Tree, new: Tree
) -> Iterator[Score]:
    """The patches whose older form does not apply as it is."""
    tags = ported.job.order
    for result in ported.overlays:
        overlay = overlays.get(result.overlay)
        for patch in result.patches:
            if patch.unchecked or patch.outcome in ("exact", "offset"):
                continue
            if patch.target in new.files and applies(patch, overlay, old, new, tags):
                continue
            carried = patch.outcome in CARRIED and (patch.overlay, patch.name) not in failures
            equal = False
            if patch.target in new.files:
                wanted = read_reference(overlay, patch.target, patch.new, new, tags)
                equal = same_meaning(wanted, patch.after, python=patch.target.endswith(".py"))
            else:
                equal = patch.outcome == "dropped"
            why = "; ".join(p.note for p in patch.pieces if p.outcome in ("conflict", "resolved"))
            drifted = count_drifted(patch, old.files, new.files)
            yield Score(
                new.tag, overlay.id, patch.target, patch.outcome, carried, equal, drifted, why
            )


def applies(
    patch: PatchResult, overlay: Overlay, old: Tree, new: Tree, tags: tuple[str, ...]
) -> bool:
    """Whether the older form applies by the strict rules."""
    data = overlay.patches_for(old.tag, tags)[patch.name]
    form = parse_patch(data, name=patch.name)
    return form.target == patch.target and apply_exactly(form, patch.new) is not None


def count_drifted(patch: PatchResult, old: Mapping[str, bytes], new: Mapping[str, bytes]) -> int:
    """How many of the symbols that a patch touches upstream has changed."""
    if not patch.target.endswith(".py") or patch.target not in new or patch.target not in old:
        return 0
    before, after = (fingerprint_symbols(tree[patch.target]) for tree in (old, new))
    symbols = {piece.symbol for piece in patch.pieces}
    return sum(before.get(symbol) != after.get(symbol) for symbol in symbols)


def count_fresh(overlays: OverlaySet, tags: tuple[str, ...], old: Tree, new: Tree) -> int:
    """Forms for a release whose target had no form for the release before."""
    return sum(
        name not in overlay.patches_for(old.tag, tags)
        for overlay in overlays.overlays
        if overlay.serves(new.tag, tags)
        for name in overlay.patches_for(new.tag, tags)
    )


def interval(hits: int, total: int) -> tuple[float, float]:
    """The 95 % interval of a proportion (Wilson)."""
    if not total:
        return 0.0, 1.0
    z = 1.96
    share, centre = hits / total, (hits / total + z * z / (2 * total))
    spread = z * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    whole = 1 + z * z / total
    return (centre - spread) / whole, (centre + spread) / whole


def print_table(scores: list[Score], tags: tuple[str, ...]) -> None:
    """One line a release, and all together."""
    print("| release | scored | carried | equal | drifted symbols in carried | share | 95 % |")
    print("|---|---|---|---|---|---|---|")
    for tag in (*tags[1:], "all"):
        rows = [s for s in scores if tag in ("all", s.release)]
        carried = [s for s in rows if s.carried]
        if not rows:
            continue
        low, high = interval(len(carried), len(rows))
        equal = sum(s.equal for s in carried)
        drifted = sum(s.drifted for s in carried)
        share = len(carried) / len(rows)
        print(
            f"| {tag} | {len(rows)} | {len(carried)} | {equal} | {drifted} | {share:.1%} "
            f"| {low:.0%} to {high:.0%} |"
        )


if __name__ == "__main__":
    main()
