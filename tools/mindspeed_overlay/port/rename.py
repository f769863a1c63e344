"""Names that upstream replaced by others throughout a symbol."""

import re
from collections.abc import Iterable, Mapping, Sequence

from mindspeed_overlay.port.units import Unit

_WORD = re.compile(rb"[A-Za-z_]\w*")


def find_renames(
    pairs: Iterable[tuple[Unit, Unit]], old: Sequence[Unit], new: Sequence[Unit]
) -> dict[bytes, bytes]:
    """Old names to new ones.

    A name counts as renamed if statements that correspond differ by it alone, always in the same
    way, and the old name is used no more where the new one was not used before.
    """
    seen: dict[bytes, set[bytes]] = {}
    for before, after in pairs:
        if before.key == after.key or len(before.tokens) != len(after.tokens):
            continue
        changed = {(a, b) for a, b in zip(before.tokens, after.tokens, strict=True) if a != b}
        if all(_WORD.fullmatch(a) and _WORD.fullmatch(b) for a, b in changed):
            for a, b in changed:
                seen.setdefault(a, set()).add(b)
    old_words, new_words = list_names(old), list_names(new)
    return {
        a: next(iter(names))
        for a, names in seen.items()
        if len(names) == 1 and a not in new_words and not names & old_words
    }


def list_names(units: Iterable[Unit]) -> set[bytes]:
    """The names that units use, attributes of something not counted."""
    return {
        token
        for unit in units
        for before, token in zip((b"", *unit.tokens), unit.tokens, strict=False)
        if before != b"."
    }


def rename_words(text: bytes, renames: Mapping[bytes, bytes]) -> bytes:
    """`text` with names replaced; attributes and the names of keyword arguments stay."""
    if not renames:
        return text

    def choose(match: re.Match[bytes]) -> bytes:
        before, after = text[: match.start()].rstrip(), text[match.end() :].lstrip()
        is_keyword = before.endswith((b"(", b",")) and re.match(rb"=(?!=)", after)
        if before.endswith(b".") or is_keyword:
            return match[0]
        return renames.get(match[0], match[0])

    return _WORD.sub(choose, text)
