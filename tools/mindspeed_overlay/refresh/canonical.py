"""One patch written anew: least context, right symbols, a Base-Blob for each release it serves."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from mindspeed_overlay.apply import check_symbols
from mindspeed_overlay.errors import ApplyError, GateError, OverlayError, Problem
from mindspeed_overlay.lint import is_idle
from mindspeed_overlay.patch import Patch, make_patch, serialize_patch, split_lines
from mindspeed_overlay.patch_diff import diff_lines
from mindspeed_overlay.refresh.forms import Stage
from mindspeed_overlay.syntax import parse_module
from mindspeed_overlay.tree import git_blob_id


@dataclass(frozen=True)
class Rewritten:
    """A patch as it should be, and lines of edits that were left out because they do nothing."""

    patch: Patch
    data: bytes
    idle_lines: tuple[int, ...] = ()


def rewrite_patch(
    overlay: str,
    target: str,
    after: bytes,
    *,
    model: Patch,
    home: Stage,
    stages: Mapping[str, Stage],
) -> Rewritten | None:
    """The canonical patch that gives `after` on its home release, and fits the others it serves.

    Args:
        overlay: the overlay's id.
        target: the edited file.
        after: its bytes on `home` with the overlay applied.
        model: gives header, reason and name.
        home: the release on which the edit was made.
        stages: every release that the patch serves, `home` among them.

    Returns:
        None where nothing is edited.

    Raises:
        ApplyError: it does not fit one of the other releases; the message names it.
    """
    before = home.before[target]
    kept, idle = _drop_idle(before, after)
    if kept == before:
        return None
    made = _make(before, kept, target=target, model=model, stages=stages)
    looked_at = [stage for stage in stages.values() if target not in stage.skipped]
    problems = [problem for stage in looked_at for problem in _try(overlay, made, stage)]
    if problems:
        raise ApplyError(*problems)
    # The edits of any release they serve give the same patch: that of the oldest.
    return replace(canonize_patch(overlay, made, stages=stages), idle_lines=idle)


def canonize_patch(overlay: str, patch: Patch, *, stages: Mapping[str, Stage]) -> Rewritten:
    """The canonical form of a patch as it stands.

    It is made on the oldest release it serves. Where the least context of that one is too little
    for a later one, the patch keeps its own hunks.

    Raises:
        ApplyError: the patch does not apply to a release that it serves.
    """
    looked_at = [stage for stage in stages.values() if patch.target not in stage.skipped]
    landings = [stage.apply(overlay, patch) for stage in looked_at]
    before, after = landings[0].before, landings[0].applied.data
    made = _make(before, after, target=patch.target, model=patch, stages=stages)
    pairs = zip(looked_at, landings, strict=True)
    if all(_gives_same(overlay, made, stage, found.applied.data) for stage, found in pairs):
        return Rewritten(made, serialize_patch(made))
    kept = replace(made, hunks=patch.hunks)
    return Rewritten(kept, serialize_patch(kept))


def _gives_same(overlay: str, patch: Patch, stage: Stage, expected: bytes) -> bool:
    try:
        landing = stage.apply(overlay, patch)
    except OverlayError:
        return False
    if landing.applied.data != expected:
        return False
    return not check_symbols(landing, symbol_at=parse_module(landing.before).symbol_at)


def _make(
    before: bytes, after: bytes, *, target: str, model: Patch, stages: Mapping[str, Stage]
) -> Patch:
    known = model.base_blobs
    blobs = [
        f"{tag} {known[tag] if target in stage.skipped else git_blob_id(stage.pristine[target])}"
        for tag, stage in stages.items()
        if target not in stage.skipped or tag in known
    ]
    return make_patch(
        before,
        after,
        target=target,
        header={**model.header, "Base-Blob": tuple(blobs)},
        symbol_of=parse_module(before).symbol_at,
        reason=model.reason,
        name=model.name,
    )


def _try(overlay: str, patch: Patch, stage: Stage) -> Iterator[Problem]:
    """Why a patch does not serve a release."""
    try:
        landing = stage.apply(overlay, patch)
    except (ApplyError, GateError) as error:
        yield from error.problems
        return
    yield from check_symbols(landing, symbol_at=parse_module(landing.before).symbol_at)


def _drop_idle(before: bytes, after: bytes) -> tuple[bytes, tuple[int, ...]]:
    """`after` without edits of comments and white space alone, and the lines of those, from 1."""
    old, new = split_lines(before), split_lines(after)
    lines: list[bytes] = []
    idle: list[int] = []
    at = 0
    for i1, i2, j1, j2 in diff_lines(old, new):
        lines += old[at:i1]
        if is_idle(old[i1:i2], new[j1:j2]):
            lines += old[i1:i2]
            idle.append(j1 + 1)
        else:
            lines += new[j1:j2]
        at = i2
    return b"".join([*lines, *old[at:]]), tuple(idle)
