"""Swaps of bytes, and a file with conflict markers where edits had no place."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mindspeed_overlay.port.document import Document
from mindspeed_overlay.port.model import Swap


@dataclass(frozen=True)
class Failed:
    """An edit between markers: lines of the three texts."""

    new: tuple[int, int]
    base: tuple[int, int]
    edited: tuple[int, int]


def mark_conflicts(
    documents: tuple[Document, Document, Document],
    given: Sequence[Swap],
    failed: list[Failed],
    labels: tuple[str, str],
) -> bytes:
    """The new file with the swaps made, and the edits that failed between markers.

    Args:
        documents: old, edited, new.
        given: the swaps of the edits that were carried.
        failed: those that were not.
        labels: written at the markers: of the new file, of the edits.
    """
    old, edited, new = documents
    end = b"\r\n" if b"\r\n" in new.data else b"\n"
    swaps = list(given)
    for group in _merge_frames(failed):
        start, stop = (new.offsets[k] for k in group.new)
        inside = [s for s in swaps if start <= s.start and s.end <= stop and stop > start]
        swaps = [s for s in swaps if s not in inside]
        ours = exchange(
            new.data[start:stop],
            [Swap(s.start - start, s.end - start, s.text) for s in inside],
        )
        parts = (
            b"<<<<<<< " + labels[0].encode() + end,
            _whole(ours, end),
            b"||||||| base" + end,
            _whole(b"".join(old.lines[slice(*group.base)]), end),
            b"=======" + end,
            _whole(b"".join(edited.lines[slice(*group.edited)]), end),
            b">>>>>>> " + labels[1].encode() + end,
        )
        swaps.append(Swap(start, stop, b"".join(parts)))
    return exchange(new.data, swaps)


def _merge_frames(failed: list[Failed]) -> Iterator[Failed]:
    """Conflicts whose places touch are shown as one."""
    group: Failed | None = None
    for item in sorted(failed, key=lambda f: f.new):
        if group is not None and item.new[0] <= group.new[1] and item.base[0] >= group.base[0]:
            group = Failed(
                (group.new[0], max(group.new[1], item.new[1])),
                (group.base[0], max(group.base[1], item.base[1])),
                (group.edited[0], max(group.edited[1], item.edited[1])),
            )
            continue
        if group is not None:
            yield group
        group = item
    if group is not None:
        yield group


def _whole(text: bytes, end: bytes) -> bytes:
    return text if not text or text.endswith(b"\n") else text + end


def exchange(data: bytes, swaps: Sequence[Swap]) -> bytes:
    """`data` with every swap made; those at one place in their order."""
    parts: list[bytes] = []
    at = 0
    for swap in sorted(swaps, key=lambda s: (s.start, s.end)):
        if swap.start < at:
            raise ValueError(f"two swaps overlap at byte {swap.start}")
        parts += (data[at : swap.start], swap.text)
        at = swap.end
    return b"".join([*parts, data[at:]])
