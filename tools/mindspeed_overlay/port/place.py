"""Carry one edit by lines: 3-way, inside the symbol that it was made in."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from mindspeed_overlay.patch_diff import Edit
from mindspeed_overlay.port.align import align_lines
from mindspeed_overlay.port.document import Document
from mindspeed_overlay.port.model import Misfit, Outcome, Placed, Swap


@dataclass(frozen=True, eq=False)
class Region:
    """One symbol in the old file and its counterpart in the new one, as line ranges.

    Attributes:
        same: whether the symbol's statements are the same in both.
        how: what an edit that fits is called.
    """

    old: Document
    new: Document
    old_span: tuple[int, int]
    new_span: tuple[int, int]

    @cached_property
    def same(self) -> bool:
        """Whether the symbol is made of the same statements in both files."""
        ours = [self.old.units[k].key for k in self.old.units_in(*self.old_span)]
        theirs = [self.new.units[k].key for k in self.new.units_in(*self.new_span)]
        return ours == theirs and bool(ours)

    @cached_property
    def lines(self) -> list[int | None]:
        """For each line of the old span the same line of the new file, or None."""
        (a, b), (c, d) = self.old_span, self.new_span
        found = align_lines(self.old.lines[a:b], self.new.lines[c:d])
        return [None if j is None else c + j for j in found]

    def find_line(self, line: int) -> int | None:
        """The new index of an old line; the ends of the span match each other."""
        a, b = self.old_span
        if line < a:
            return self.new_span[0] - 1
        return self.lines[line - a] if line < b else self.new_span[1]


def place_lines(region: Region, edit: Edit, added: Sequence[bytes]) -> Placed | Misfit:
    """Carry an edit to where its old lines, and the lines around them, stand now."""
    i1, i2 = edit[:2]
    before, after = region.find_line(i1 - 1), region.find_line(i2)
    new = region.new
    text = b"".join(added)
    how: Outcome = "re-anchored" if region.same else "merged"
    if before is None or after is None:
        return Misfit("upstream changed the lines around it")
    if new.lines[before + 1 : after] == list(added):
        return Placed("absorbed", note="upstream has it")
    wanted = range(before + 1, after)
    if [region.find_line(k) for k in range(i1, i2)] != list(wanted):
        return Misfit("upstream changed the same lines" if i1 < i2 else "upstream added lines here")
    return Placed(how, (Swap(new.offsets[before + 1], new.offsets[after], text),))
