"""Carry one edit by statements, where lines no longer tell its place.

The edit is read as statements added, dropped and changed. Each is carried on its own: an addition
to between the neighbours it had, a drop to the same statement wherever and in whatever layout it
stands, a change into upstream's present form of the statement. What upstream put at the same place
must commute with an addition: neither may write what the other uses, nor leave the block.
"""

import re
from collections.abc import Sequence

from mindspeed_overlay.patch_diff import Edit
from mindspeed_overlay.port.align import align_units
from mindspeed_overlay.port.commute import bound_names, explain_clash, is_guard
from mindspeed_overlay.port.document import Document
from mindspeed_overlay.port.model import Misfit, Placed, Swap
from mindspeed_overlay.port.nodes import MergeConflictError, merge_units
from mindspeed_overlay.port.rename import list_names, rename_words
from mindspeed_overlay.port.slots import Slot, Slots, StatementConflictError, Statements
from mindspeed_overlay.port.units import Unit, list_imports


def place_statements(statements: Statements, edited: Document, edit: Edit) -> Placed | Misfit:
    """Carry an edit, or say why it can't be."""
    try:
        swaps, notes = _Carrier(statements, edited, edit).run()
    except (StatementConflictError, MergeConflictError) as error:
        return Misfit(str(error))
    if not swaps:
        note = "; ".join(notes) or "upstream has it, in other words or another layout"
        return Placed("absorbed", note=note)
    return Placed("structural", tuple(swaps), "; ".join(dict.fromkeys(notes)))


class _Carrier:
    def __init__(self, statements: Statements, edited: Document, edit: Edit) -> None:
        self.st = statements
        self.slots = Slots(statements)
        self.edited = edited
        self.edit = edit
        self.notes: list[str] = []
        self.new = statements.region.new

    def run(self) -> tuple[list[Swap], list[str]]:
        i1, i2, j1, j2 = self.edit
        st, old_doc = self.st, self.st.region.old
        first = old_doc.units_in(*st.region.old_span).start
        touched = old_doc.units_touching(i1, i2)
        ours = self.edited.units_touching(j1, j2)
        if not ours and not touched:
            return self._carry_comments()
        low = touched.start - first if touched else self._gap(i1)
        olds = st.old[low : low + len(touched)] if touched else []
        mine = self.edited.units[ours.start : ours.stop]
        to_mine = align_units(olds, mine)
        if to_mine == [None] and len(mine) == 1 and self._is_cast(low):
            to_mine = [0]
        swaps: list[Swap] = []
        if self._is_obsolete(olds, mine, low):
            return [], self.notes
        if any(
            m is not None and mine[m].indent != u.indent for u, m in zip(olds, to_mine, strict=True)
        ):
            return self._wrap(olds, mine, low), self.notes
        for k, unit in enumerate(olds):
            m = to_mine[k]
            if m is None:
                swaps += self._drop(low + k)
            elif mine[m].key != unit.key:
                swaps += self._change(low + k, mine[m])
        dropped = {low + k for k, m in enumerate(to_mine) if m is None}
        if len(to_mine) - to_mine.count(None) < len(mine):
            for k in sorted(dropped):
                if self.st.find(k) is None:
                    what = f"`{_show(self.st.old[k])}`, which it replaces"
                    raise StatementConflictError(f"upstream removed {what}")
        for start, end in _runs([m for m in range(len(mine)) if m not in to_mine]):
            before = [k for k, m in enumerate(to_mine) if m is not None and m < start]
            at = low + (before[-1] + 1 if before else 0)
            if at in dropped and (now := self.st.find(at)) is not None:
                swaps.append(self._replace(mine[start:end], st.old[at], now))
            else:
                swaps += self._add(mine[start:end], at, dropped)
        return swaps, self.notes

    def _is_cast(self, index: int) -> bool:
        """Whether upstream put no more than a `cast` around an expression of a statement."""
        unit, now = self.st.old[index], self.st.find(index)
        return now is not None and now.key != unit.key and now.plain == unit.plain

    def _gap(self, line: int) -> int:
        return next(
            (k for k, unit in enumerate(self.st.old) if unit.first >= line), len(self.st.old)
        )

    def _carry_comments(self) -> tuple[list[Swap], list[str]]:
        raise StatementConflictError("upstream changed the comments or blank lines here")

    def _is_obsolete(self, olds: Sequence[Unit], mine: Sequence[Unit], low: int) -> bool:
        """Whether an edit only provides names that upstream has stopped to import and to use."""
        if not olds or not all(unit.is_import for unit in olds):
            return False
        if any(self.st.find(low + k) is not None for k in range(len(olds))):
            return False
        names = set[str]().union(*(bound_names(u) for u in (*olds, *mine) if u.is_import))
        used = {name.decode(errors="replace") for name in list_names(self.new.units)}
        if not names or names & used:
            return False
        self.notes.append(f"upstream imports and uses {', '.join(sorted(names))} no more")
        return True

    def _replace(self, units: Sequence[Unit], old: Unit, now: Unit) -> Swap:
        """Put statements where the one stood that they replace."""
        if len(units[0].indent) != len(old.indent):
            raise StatementConflictError("it replaces a statement by one of another block")
        text = self._indent(units[0], now.indent, self._first_line(units[0]), units[-1].end)
        offset = self.new.offsets[now.first]
        return Swap(offset, offset, text)

    def _wrap(self, olds: Sequence[Unit], mine: Sequence[Unit], low: int) -> list[Swap]:
        """Indent statements anew, as when they are put under an `if` or a `try`.

        Upstream must have them as they were, with nothing between them.
        """
        now = [self.st.find(low + k) for k in range(len(olds))]
        found = [unit for unit in now if unit is not None]
        at = self.st.new.index(found[0]) if found else 0
        if found != self.st.new[at : at + len(olds)] or len(found) != len(olds):
            raise StatementConflictError("upstream changed the block that it indents anew")
        for unit, there in zip(olds, found, strict=True):
            if unit.key != there.key:
                raise StatementConflictError(f"upstream changed `{_show(unit)}`, which it indents")
        if found[0].scope != olds[0].scope:
            heads = [unit for unit in mine if unit.key.endswith(b":")]
            if self._has_heads(found, heads):
                return []
            raise StatementConflictError("upstream put the block that it indents into another one")
        offsets = self.new.offsets
        shift = found[0].indent if olds[0].indent == mine[0].indent else None
        if shift is None and found[0].indent != olds[0].indent:
            raise StatementConflictError("upstream indented the block anew, and so does it")
        text = self._indent(
            mine[0], shift or mine[0].indent, self._first_line(mine[0]), mine[-1].end
        )
        return [Swap(offsets[found[0].first], offsets[found[-1].end], text)]

    def _has_heads(self, block: Sequence[Unit], heads: Sequence[Unit]) -> bool:
        """Whether upstream put a block under the same headers as the edit does."""
        new = self.st.new
        at = new.index(block[0])
        inside = len(block[0].indent)
        outer = next((k for k in range(at - 1, -1, -1) if len(new[k].indent) < inside), None)
        if outer is None or not heads:
            return False
        indent = new[outer].indent
        keys = [new[outer].key]
        end = self.slots.end_of_block(outer + 1, indent + b" ")
        while end < len(new) and new[end].indent == indent and new[end].kind.endswith("_clause"):
            keys.append(new[end].key)
            end = self.slots.end_of_block(end + 1, indent + b" ")
        return [unit.key for unit in heads] == keys

    def _drop(self, index: int) -> list[Swap]:
        unit, now = self.st.old[index], self.st.find(index)
        if now is None:
            self.notes.append("what it removes is gone already")
            return []
        if now.key != unit.key and rename_words(unit.key, self.st.renames) != now.key:
            raise StatementConflictError(f"upstream changed `{_show(unit)}`, which it removes")
        offsets = self.new.offsets
        return [Swap(offsets[now.first], offsets[now.end], b"")]

    def _change(self, index: int, mine: Unit) -> list[Swap]:
        unit, now = self.st.old[index], self.st.find(index)
        if now is None:
            raise StatementConflictError(f"`{_show(unit)}`, which it changes, is gone")
        if now.key == unit.key:
            text = self._indent(mine, now.indent, mine.first, mine.end)
            offsets = self.new.offsets
            return [Swap(offsets[now.first], offsets[now.end], text)]
        return list(merge_units(unit, mine, now))

    def _add(self, units: Sequence[Unit], at: int, dropped: set[int]) -> list[Swap]:
        """Add statements before old statement `at`, to the block that they stand in."""
        known = list_imports(self.new.units)
        brought = [list_imports([unit]) for unit in units]
        if all(names and names <= known for names in brought):
            return []
        base = units[0].indent
        if any(len(u.indent) < len(base) for u in units):
            raise StatementConflictError("it adds statements to two blocks at once")
        st = self.st
        previous = next(
            (k for k in range(at - 1, -1, -1) if len(st.old[k].indent) <= len(base)), None
        )
        following = at
        while following in dropped:
            following += 1
        has_next = following < len(st.old) and st.old[following].indent == base
        try:
            slot = self.slots.find(previous, following if has_next else None, base)
        except StatementConflictError:
            if not all(unit.is_import and not unit.scope for unit in units):
                raise
            slot = self.slots.find_for_import(at)
        between = st.new[slot.low : slot.high]
        if [u.key for u in between] == [u.key for u in units]:
            return []
        guards = slot.before is not None and is_guard(units)
        if between and (clash := explain_clash(units, between, guards=guards)):
            raise StatementConflictError(clash)
        if between:
            self.notes.append(f"beside upstream's new `{_show(between[0])}`")
        text = self._indent(units[0], slot.indent, self._first_line(units[0]), units[-1].end)
        place = self._choose_line(slot, is_import=units[0].is_import)
        if place == len(self.new.lines) and self.new.lines and not self.new.data.endswith(b"\n"):
            text = b"\n" + text
        return [Swap(self.new.offsets[place], self.new.offsets[place], text)]

    def _choose_line(self, slot: Slot, *, is_import: bool) -> int:
        """Right before what stood after the addition, else right after what stood before it."""
        lone = slot.low == slot.high
        if slot.before is not None and (lone or not is_import):
            return self.new.comments_above(slot.before)
        if slot.after is None and slot.limit is not None:
            return self.new.comments_above(slot.limit)
        return self.st.new[slot.low - 1].end if slot.low else self.st.region.new_span[0]

    def _first_line(self, unit: Unit) -> int:
        """Comments and blank lines of the edit above an added statement go with it."""
        at = unit.first
        while at > self.edit[2] and not self.edited.lines[at - 1].strip():
            at -= 1
        while at > self.edit[2] and self.edited.lines[at - 1].lstrip().startswith(b"#"):
            at -= 1
        while at > self.edit[2] and not self.edited.lines[at - 1].strip():
            at -= 1
        return at

    def _indent(self, unit: Unit, indent: bytes, first: int, end: int) -> bytes:
        lines = self.edited.lines[first:end]
        while end < self.edit[3] and not self.edited.lines[end].strip():
            lines.append(self.edited.lines[end])
            end += 1
        text = b"".join(lines)
        if indent != unit.indent:
            if re.search(rb"\"\"\"|'''", text):
                raise StatementConflictError("a multi-line string would have to be indented anew")
            text = b"".join(_shift(line, unit.indent, indent) for line in lines)
        renamed = rename_words(text, self.st.renames)
        if renamed != text:
            self.notes += self.st.explain_renames()
        return renamed


def _shift(line: bytes, old: bytes, new: bytes) -> bytes:
    if not line.strip():
        return line
    if line.startswith(old):
        return new + line[len(old) :]
    return line


def _runs(indices: list[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for index in indices:
        if runs and runs[-1][1] == index:
            runs[-1] = runs[-1][0], index + 1
        else:
            runs.append((index, index + 1))
    return runs


def _show(unit: Unit) -> str:
    text = unit.key.decode(errors="replace")
    return text if len(text) <= 60 else text[:57] + "..."
