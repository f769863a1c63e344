"""Which lines and which units of an old text are which of a new one."""

from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher

from mindspeed_overlay.patch_diff import diff_lines
from mindspeed_overlay.port.units import Unit

_ALIKE = 0.6


def align_lines(old: Sequence[bytes], new: Sequence[bytes]) -> list[int | None]:
    """For each old line the index of the same line in the new text, increasing, or None."""
    found: list[int | None] = [None] * len(old)
    i = j = 0
    for i1, i2, _, j2 in (*diff_lines(old, new), (len(old), len(old), len(new), len(new))):
        for k in range(i1 - i):
            found[i + k] = j + k
        i, j = i2, j2
    return found


def align_units(old: Sequence[Unit], new: Sequence[Unit]) -> list[int | None]:
    """For each old unit its counterpart in the new text, or None.

    Units with equal keys first, in order; then, between those, units of one kind that are much
    alike; last, units that stand once on each side and have moved.
    """
    found = align_lines([u.key for u in old], [u.key for u in new])
    taken = {j for j in found if j is not None}
    _match_alike(old, new, found, taken)
    old_counts, new_counts = Counter(u.key for u in old), Counter(u.key for u in new)
    new_at = {u.key: j for j, u in enumerate(new)}
    for i, unit in enumerate(old):
        once = old_counts[unit.key] == new_counts[unit.key] == 1
        if once and found[i] is None and new_at[unit.key] not in taken:
            found[i] = new_at[unit.key]
    return found


def _match_alike(
    old: Sequence[Unit], new: Sequence[Unit], found: list[int | None], taken: set[int]
) -> None:
    low = 0
    for i, unit in enumerate(old):
        if (here := found[i]) is not None:
            low = here + 1
            continue
        high = next((j for j in found[i + 1 :] if j is not None), len(new))
        best, best_at = _ALIKE, -1
        for j in range(low, high):
            if j not in taken and new[j].kind == unit.kind:
                score = compare_units(unit, new[j])
                if score > best:
                    best, best_at = score, j
        if best_at >= 0:
            found[i] = best_at
            taken.add(best_at)
            low = best_at + 1


def compare_units(old: Unit, new: Unit) -> float:
    """How alike two units are, from 0 to 1; what they define or assign counts most."""
    if old.key == new.key:
        return 1.0
    head_old, head_new = _read_subject(old), _read_subject(new)
    if old.is_definition and head_old != head_new:
        return 0.0
    ratio = SequenceMatcher(None, old.plain, new.plain, autojunk=False).ratio()
    return 0.4 + 0.6 * ratio if head_old and head_old == head_new else ratio


def _read_subject(unit: Unit) -> tuple[bytes, ...]:
    """What a unit is about: the name defined, the target assigned, the module imported from."""
    tokens = unit.tokens
    if unit.kind in ("function_definition", "class_definition"):
        return tokens[: 3 if tokens[0] == b"async" else 2]
    if unit.kind == "import_from_statement":
        return tokens[: tokens.index(b"import")] if b"import" in tokens else ()
    for mark in (b"=", b":"):
        if unit.kind == "expression_statement" and mark in tokens:
            return tokens[: tokens.index(mark)]
    return ()
