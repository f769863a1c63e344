"""The place of an addition among statements: between the neighbours that it had."""

from dataclasses import dataclass
from functools import cached_property

from mindspeed_overlay.port.align import align_units
from mindspeed_overlay.port.place import Region
from mindspeed_overlay.port.rename import find_renames, rename_words
from mindspeed_overlay.port.units import Unit


class StatementConflictError(Exception):
    """An edit has no one place; the message says why."""


@dataclass(frozen=True, eq=False)
class Statements:
    """The statements of one region, aligned; shared by all its edits."""

    region: Region

    @cached_property
    def old(self) -> list[Unit]:
        """The old statements."""
        found = self.region.old.units_in(*self.region.old_span)
        return self.region.old.units[found.start : found.stop]

    @cached_property
    def new(self) -> list[Unit]:
        """The new ones."""
        found = self.region.new.units_in(*self.region.new_span)
        return self.region.new.units[found.start : found.stop]

    @cached_property
    def to_new(self) -> list[int | None]:
        """For each old statement its counterpart."""
        return align_units(self.old, self.new)

    @cached_property
    def renames(self) -> dict[bytes, bytes]:
        """Names that upstream replaced throughout the symbol."""
        pairs = [
            (unit, self.new[j])
            for unit, j in zip(self.old, self.to_new, strict=True)
            if j is not None
        ]
        return find_renames(pairs, self.old, self.new)

    def explain_renames(self) -> list[str]:
        """For a report."""
        pairs = self.renames.items()
        return [f"upstream renamed {old.decode()} to {new.decode()}" for old, new in pairs]

    def find(self, index: int) -> Unit | None:
        """The counterpart of old statement `index`."""
        j = self.to_new[index]
        return None if j is None else self.new[j]


@dataclass(frozen=True)
class Slot:
    """A place for an addition: new statements `low:high` are upstream's additions there.

    `after` and `before` are the counterparts of its direct neighbours, `limit` what ends the place.
    """

    low: int
    high: int
    indent: bytes
    after: Unit | None
    before: Unit | None
    limit: Unit | None


class Slots:
    """Finds places in the statements of one region."""

    def __init__(self, statements: Statements) -> None:
        self.st = statements

    def find(self, previous: int | None, following: int | None, base: bytes) -> Slot:
        """Where an addition between two old statements may go.

        Where one of the two is gone, the next one of the same block bounds the place instead.
        """
        st = self.st
        if previous is None and following is None:
            last = len(st.new)
            return Slot(last, last, base, None, None, None)
        after = st.find(previous) if previous is not None else None
        before = st.find(following) if following is not None else None
        low, high = self._bound_below(previous, base), self._bound_above(following, base)
        lower = st.find(low) if low is not None else None
        upper = st.find(high) if high is not None else None
        if after is None and before is None:
            raise StatementConflictError("the statements around it are gone")
        if not any(k is not None and self._is_same(k) for k in (previous, following)):
            raise StatementConflictError("upstream changed the statements on both sides of it")
        head = low is not None and len(st.old[low].indent) < len(base)
        if lower and upper and not head and lower.indent != upper.indent:
            raise StatementConflictError("the statements around it stand in two blocks now")
        if upper is not None:
            indent = upper.indent
        else:
            assert lower is not None
            indent = self._child_indent(lower) if head else lower.indent
        start = self._end_of(lower, head=head) if lower is not None else None
        end = st.new.index(upper) if upper is not None else None
        if end is None:
            assert start is not None
            end = self.end_of_block(start, indent)
        if start is None:
            start = end
        if start > end:
            raise StatementConflictError("the statements around it have changed places")
        return Slot(start, end, indent, after, before, upper)

    def find_for_import(self, at: int) -> Slot:
        """Imports may go after any other one; the nearest above that upstream still has.

        Raises:
            StatementConflictError: upstream has none of those.
        """
        for k in range(at - 1, -1, -1):
            now = self.st.find(k)
            if now is not None and now.is_import and not now.scope and not self.st.old[k].scope:
                place = self.st.new.index(now) + 1
                return Slot(place, place, now.indent, now, None, None)
        raise StatementConflictError("the imports around it are gone")

    def _is_same(self, index: int) -> bool:
        """Whether upstream has an old statement as it was; of a definition only its name counts."""
        unit, now = self.st.old[index], self.st.find(index)
        if now is None:
            return False
        return unit.is_definition or now.key in (unit.key, rename_words(unit.key, self.st.renames))

    def _bound_below(self, index: int | None, base: bytes) -> int | None:
        """The last statement of the block up to `index` that upstream has, or its header."""
        for k in range(index if index is not None else -1, -1, -1):
            if len(self.st.old[k].indent) > len(base):
                continue
            if self.st.find(k) is not None:
                return k
            if len(self.st.old[k].indent) < len(base):
                return None
        return None

    def _bound_above(self, index: int | None, base: bytes) -> int | None:
        """The first statement of the block from `index` on that upstream has."""
        for k in range(index if index is not None else len(self.st.old), len(self.st.old)):
            if len(self.st.old[k].indent) < len(base):
                return None
            if self.st.old[k].indent == base and self.st.find(k) is not None:
                return k
        return None

    def _end_of(self, unit: Unit, *, head: bool) -> int:
        """The index after a statement and all that is nested in it; of a header after itself."""
        at = self.st.new.index(unit) + 1
        if head:
            is_doc = at < len(self.st.new) and self.st.new[at].key[:1] in (b'"', b"'")
            return at + is_doc
        while at < len(self.st.new) and len(self.st.new[at].indent) > len(unit.indent):
            at += 1
        return at

    def end_of_block(self, at: int, indent: bytes) -> int:
        while at < len(self.st.new) and len(self.st.new[at].indent) >= len(indent):
            at += 1
        return at

    def _child_indent(self, head: Unit) -> bytes:
        at = self.st.new.index(head) + 1
        if at < len(self.st.new) and len(self.st.new[at].indent) > len(head.indent):
            return self.st.new[at].indent
        return head.indent + b"    "
