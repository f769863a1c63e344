"""Carry an overlay set release by release.

Each patch is carried on top of the overlays that its own requires, and of no others, as it is
applied when it is selected alone. A patch that does not reach one release is tried on the next from
where it stood, so a change that upstream took back is no conflict.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mindspeed_overlay.apply import land_patches
from mindspeed_overlay.errors import ApplyError, Problem
from mindspeed_overlay.overlay import Overlay
from mindspeed_overlay.patch import Patch, parse_patch
from mindspeed_overlay.port.carry import Carried, apply_moves, carry_patch, remake_patch
from mindspeed_overlay.port.document import Document
from mindspeed_overlay.port.follow import find_renamed
from mindspeed_overlay.port.merge import merge_file
from mindspeed_overlay.port.model import Move, Outcome
from mindspeed_overlay.port.outcome import describe_thread, drop_hunk, with_note
from mindspeed_overlay.port.symbols import Counterpart, find_elsewhere
from mindspeed_overlay.port.threads import PatchResult, Stuck, Thread
from mindspeed_overlay.port.traces import Traces
from mindspeed_overlay.port.trees import Tree, carries
from mindspeed_overlay.tree import git_blob_id, sha256

Sets = Mapping[str, Mapping[str, bytes]]
Resolutions = Mapping[tuple[str, str], bytes]
"""(overlay, target) to the file as a person left it."""


class BlockedError(Exception):
    """A required overlay has no form for a release; the message says which."""


@dataclass
class Steps:
    """The way of an overlay set through some releases.

    Attributes:
        overlays: in series order, with everything that they require.
        trees: from the oldest release any of them starts at, to the new one.
        starts: for each overlay the index of the tree that it starts from.
        sets: for overlay id and tag, the patch files that serve it there.
        resolutions: how a person decided; used at the last tree.
        met: for a resolution the SHA-256 of the text that it was made of.
        today: for Last-Update.
    """

    overlays: Sequence[Overlay]
    trees: Sequence[Tree]
    starts: Mapping[str, int]
    sets: Callable[[Overlay, str], Mapping[str, bytes]]
    resolutions: Resolutions = field(default_factory=dict)
    met: Mapping[tuple[str, str], str] = field(default_factory=dict)
    today: str = ""
    report: Callable[[str], None] = lambda _sentence: None
    _threads: dict[str, list[Thread]] = field(default_factory=dict)
    _forms: dict[tuple[str, int], dict[str, Patch] | None] = field(default_factory=dict)
    _traces: dict[int, Traces] = field(default_factory=dict)
    _misfits: dict[str, list[tuple[str, Patch, str]]] = field(default_factory=dict)
    _skipped: dict[str, list[tuple[str, Patch]]] = field(default_factory=dict)

    def run(self) -> dict[str, list[PatchResult]]:
        """What became of every patch, by overlay.

        Raises:
            ApplyError: a patch file can't be read.
        """
        problems: list[Problem] = []
        for overlay in self.overlays:
            try:
                self._threads[overlay.id] = list(self._begin(overlay))
            except ApplyError as error:
                problems += error.problems
        if problems:
            raise ApplyError(*problems)
        for index in range(1, len(self.trees)):
            self.report(f"carrying to {self.trees[index].tag}")
            for overlay in self.overlays:
                if self.starts[overlay.id] < index:
                    self._advance(overlay, index)
        return {o.id: [*self._finish(o)] for o in self.overlays}

    def _begin(self, overlay: Overlay) -> Iterator[Thread]:
        index = self.starts[overlay.id]
        tree = self.trees[index]
        for name, data in self.sets(overlay, tree.tag).items():
            patch = parse_patch(data, name=name)
            if patch.target not in tree.files and not carries(tree, patch.target):
                self._skipped.setdefault(overlay.id, []).append((name, patch))
                continue
            base = self._before(overlay, patch.target, index)
            files = {} if base is None else {patch.target: base}
            try:
                landing = land_patches(files, [(overlay.id, patch)], release=tree.tag)[0]
            except ApplyError as error:
                # One overlay that is not in order must not hold up the others.
                why = f"does not fit {tree.tag}, where it starts: {error.problems[0].message}"
                self._misfits.setdefault(overlay.id, []).append((name, patch, why))
                continue
            assert base is not None
            yield Thread(overlay.id, name, patch, tree.tag, base, landing.applied.data)

    def _before(self, overlay: Overlay, path: str, index: int) -> bytes | None:
        """A file of a tree as the overlays that `overlay` requires leave it.

        Raises:
            BlockedError: one of them has no form there, or it does not apply.
        """
        data = self.trees[index].files.get(path)
        if data is None:
            return None
        needed = self._closure(overlay)
        patches = []
        for other in self.overlays:
            if other.id in needed:
                forms = self._forms_of(other, index, path)
                patches += [(other.id, forms[path])] if path in forms else []
        try:
            for landing in land_patches({path: data}, patches, release=self.trees[index].tag):
                data = landing.applied.data
        except ApplyError as error:
            raise BlockedError(error.problems[0].message) from error
        return data

    def _closure(self, overlay: Overlay) -> set[str]:
        known = {o.id: o for o in self.overlays}
        found: set[str] = set()
        waiting = list(overlay.requires)
        while waiting:
            name = waiting.pop()
            if name in known and name not in found:
                found.add(name)
                waiting += known[name].requires
        return found

    def _forms_of(self, overlay: Overlay, index: int, path: str) -> Mapping[str, Patch]:
        start = self.starts[overlay.id]
        if index <= start:
            key = (overlay.id, index)
            if key not in self._forms:
                tag = self.trees[index].tag
                patches = [parse_patch(d, name=n) for n, d in self.sets(overlay, tag).items()]
                self._forms[key] = {p.target: p for p in patches}
            return self._forms[key] or {}
        tag = self.trees[index].tag
        threads = self._threads[overlay.id]
        for thread in threads:
            stuck = thread.stuck
            if stuck is not None and path in (stuck.target, thread.target):
                raise BlockedError(f"{overlay.id}, which it requires, has a conflict in {path}")
        return {t.target: t.patch for t in threads if not t.ended and t.at == tag}

    def _advance(self, overlay: Overlay, index: int) -> None:
        tree = self.trees[index]
        landed: dict[str, Thread] = {}
        extra: list[tuple[Thread, str, list[Move]]] = []
        for thread in [t for t in self._threads[overlay.id] if not t.ended]:
            try:
                moves = self._carry(overlay, thread, index)
            except BlockedError as error:
                self._stick(thread, tree.tag, Stuck(tree.tag, "blocked", str(error), thread.target))
                continue
            for path in dict.fromkeys(move.path for move in moves):
                extra.append((thread, path, [m for m in moves if m.path == path]))
            if thread.stuck is None and not thread.ended:
                self._land(landed, thread, tree)
        for thread, path, moves in extra:
            self._split(overlay, thread, path, moves, index, landed)

    def _carry(self, overlay: Overlay, thread: Thread, index: int) -> list[Move]:
        tree = self.trees[index]
        old = next(t for t in self.trees if t.tag == thread.at)
        target, note = thread.target, ""
        if target not in tree.files:
            if self._is_last(index) and self.resolutions.get((overlay.id, target)) == b"":
                self._drop(thread, tree.tag, "resolved", "dropped by hand")
                return []
            renamed = find_renamed(target, old.files, tree.files)
            if renamed is None and not self._traces_of(index).has_file(
                target, [*thread.patch.symbols]
            ):
                note = f"{tree.tag} has no {target}, and nothing of it is used"
                self._drop(thread, tree.tag, "dropped", note)
                return []
            if renamed is None:
                why = f"{tree.tag} has no {target}, and no file like it"
                self._stick(thread, tree.tag, Stuck(tree.tag, "gone", why, target))
                return []
            target, note = renamed.path, renamed.explain(target)
        new = self._before(overlay, target, index)
        assert new is not None
        carried = self._attempt(overlay, thread, target, new, index)
        if self._is_last(index):
            carried = self._resolve(carried, (overlay.id, target))
        if note:
            carried = replace(
                carried, pieces=tuple(with_note(p, note, "moved") for p in carried.pieces)
            )
        if carried.outcome == "conflict":
            since = thread.stuck.since if thread.stuck else tree.tag
            self._stick(thread, tree.tag, Stuck(since, "conflict", "", target, new, carried))
            return []
        if carried.outcome in ("exact", "offset") and target == thread.target:
            patch: Patch | None = thread.patch
        else:
            patch = self._remake(thread, new, carried.after, target, tree)
        moves = list(carried.moves)
        if patch is None and moves:
            thread.told += [(tree.tag, p) for p in carried.pieces]
            thread.ended, thread.at, thread.stuck, thread.outcome = True, tree.tag, None, "moved"
            return moves
        thread.advance(tree.tag, carried, patch, new)
        return moves

    def _resolve(self, carried: Carried, key: tuple[str, str]) -> Carried:
        """What a person made of it; only if they were shown just this."""
        data, met = self.resolutions.get(key), self.met.get(key)
        failed = carried.outcome == "conflict"
        if data is None or (met is None and not failed):
            return carried
        if met is not None and sha256(carried.marked if failed else carried.after) != met:
            return carried
        by_hand = [p for p in carried.pieces if p.outcome == "conflict"] or [*carried.pieces]
        pieces = (replace(p, outcome="resolved") if p in by_hand else p for p in carried.pieces)
        return Carried(tuple(pieces), data)

    def _drop(self, thread: Thread, tag: str, outcome: Outcome, note: str) -> None:
        hunks = enumerate(thread.patch.hunks, 1)
        pieces = tuple(drop_hunk(number, hunk, outcome, note) for number, hunk in hunks)
        thread.advance(tag, Carried(pieces, b""), None, b"")

    def _traces_of(self, index: int) -> Traces:
        if index not in self._traces:
            self._traces[index] = Traces(self.trees[index].files)
        return self._traces[index]

    def _attempt(
        self, overlay: Overlay, thread: Thread, target: str, new: bytes, index: int
    ) -> Carried:
        tree = self.trees[index]
        old = next(t for t in self.trees if t.tag == thread.at)

        def elsewhere(document: Document, symbol: str) -> tuple[str, Counterpart] | None:
            return find_elsewhere(document, symbol, self._find_files(overlay, symbol, old, index))

        patch = replace(thread.patch, target=target)
        return carry_patch(
            patch,
            base=thread.base,
            edited=thread.edited,
            new=new,
            elsewhere=elsewhere,
            vanished=lambda before, symbol, now: (
                not self._traces_of(index).has_symbol(before, symbol, now)
            ),
            labels=(tree.tag, f"{overlay.id} ({thread.at})"),
        )

    def _find_files(
        self, overlay: Overlay, symbol: str, old: Tree, index: int
    ) -> Iterator[tuple[str, Document]]:
        """Files that may define a symbol now and did not before."""
        name = symbol.partition(".")[0].encode()
        for path, data in self.trees[index].files.items():
            if not path.endswith(".py") or old.files.get(path) == data:
                continue
            if b"def " + name not in data and b"class " + name not in data:
                continue
            before = old.files.get(path)
            if before is not None and Document(before).span_of(symbol) is not None:
                continue
            new = self._before(overlay, path, index)
            if new is not None:
                yield path, Document(new)

    def _split(
        self,
        overlay: Overlay,
        thread: Thread,
        path: str,
        moves: list[Move],
        index: int,
        landed: dict[str, Thread],
    ) -> None:
        """A part of a patch goes on in the file that its symbol moved to."""
        tree = self.trees[index]
        base = self._before(overlay, path, index)
        assert base is not None
        after = apply_moves(base, moves)
        patch = self._remake(thread, base, after, path, tree)
        if patch is None:
            return
        part = Thread(overlay.id, thread.name, patch, tree.tag, base, after, outcome="moved")
        part.told = list(thread.told)
        self._threads[overlay.id].append(part)
        self._land(landed, part, tree)

    def _land(self, landed: dict[str, Thread], thread: Thread, tree: Tree) -> None:
        """Two patches of one overlay that end in one file become one."""
        first = landed.setdefault(thread.target, thread)
        if first is thread:
            return
        merged = merge_file(thread.base, thread.edited, first.edited)
        if not merged.is_clean:
            carried = Carried(merged.pieces, merged.data, (), merged.marked)
            stuck = Stuck(tree.tag, "conflict", "", thread.target, first.edited, carried)
            self._stick(thread, tree.tag, stuck)
            return
        patch = self._remake(first, first.base, merged.data, first.target, tree)
        assert patch is not None
        first.patch, first.edited = patch, merged.data
        first.told += thread.told
        first.outcome = "moved"
        thread.ended = True
        thread.outcome = "moved"

    def _remake(
        self, thread: Thread, before: bytes, after: bytes, target: str, tree: Tree
    ) -> Patch | None:
        blob = git_blob_id(tree.files[target])
        return remake_patch(
            thread.patch,
            before=before,
            after=after,
            target=target,
            tag=tree.tag,
            blob=blob,
            today=self.today,
        )

    def _stick(self, thread: Thread, tag: str, stuck: Stuck) -> None:
        since = thread.stuck.since if thread.stuck else tag
        thread.stuck = replace(stuck, since=since)

    def _is_last(self, index: int) -> bool:
        return index == len(self.trees) - 1

    def _finish(self, overlay: Overlay) -> Iterator[PatchResult]:
        for name, patch in self._skipped.get(overlay.id, ()):
            unchecked = f"the source has no {patch.target.rpartition('/')[0]}: --source git:PATH"
            yield PatchResult(
                overlay=overlay.id,
                name=name,
                target=patch.target,
                outcome="exact",
                patch=patch,
                unchecked=unchecked,
            )
        for name, patch, why in self._misfits.get(overlay.id, ()):
            yield PatchResult(
                overlay=overlay.id,
                name=name,
                target=patch.target,
                outcome="blocked",
                notes=(why,),
                base_tag=self.trees[self.starts[overlay.id]].tag,
            )
        for thread in self._threads[overlay.id]:
            yield describe_thread(thread)
