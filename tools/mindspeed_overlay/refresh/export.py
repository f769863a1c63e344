"""From an edited work tree back to the overlay: its patches, and files that are new."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from mindspeed_overlay.drift.survey import Survey
from mindspeed_overlay.errors import ApplyError, DefinitionError, Problem
from mindspeed_overlay.overlay import Overlay
from mindspeed_overlay.patch import Patch, name_patch, parse_patch, serialize_patch, split_lines
from mindspeed_overlay.patch_diff import diff_lines
from mindspeed_overlay.provenance import trace_lines
from mindspeed_overlay.refresh.canonical import rewrite_patch
from mindspeed_overlay.refresh.forms import Stage, collect_stages, list_served
from mindspeed_overlay.refresh.sets import Rewrite
from mindspeed_overlay.worktree import Worktree, read_committed

_COMPILED = (".so", ".pyd")
_IGNORED = {
    ".git",
    "__pycache__",
    ".mypy_cache",
    ".ruff_cache",
    ".pytest_cache",
    ".idea",
    ".vscode",
}


@dataclass(frozen=True)
class NewPatch:
    """What a patch of a file that had none needs to say."""

    subject: str
    reason: str
    date: str


@dataclass(frozen=True)
class Exported:
    """What the work tree makes of the overlay; nothing is written yet.

    Attributes:
        new_files: path to contents of files that the overlay gains.
        dropped: patch files whose edits are gone from the tree, and that may go.
        notes: sentences for the user.
    """

    rewrites: tuple[Rewrite, ...]
    new_files: Mapping[str, bytes]
    dropped: tuple[str, ...]
    notes: tuple[str, ...]


def export_worktree(
    survey: Survey, overlay: Overlay, root: Path, made: Worktree, *, new: NewPatch, drop: set[str]
) -> Exported:
    """Compare a work tree with what it was made from.

    Args:
        root: the tree.
        made: its note.
        new: for files that get their first patch.
        drop: targets whose patch, and own files that, may go.

    Raises:
        DefinitionError: E440 to E443; nothing can be exported then.
        ApplyError: an edit does not fit another release that the same form serves.
    """
    since = overlay.patch_since(made.release, survey.order) or made.release
    served = list_served(overlay, since, survey.order) or [made.release]
    stages = collect_stages(survey, overlay, served)
    export = _Export(survey, overlay, root, made, stages, since, new, drop)
    return export.run()


@dataclass
class _Export:
    survey: Survey
    overlay: Overlay
    root: Path
    made: Worktree
    stages: Mapping[str, Stage]
    since: str
    new: NewPatch
    drop: set[str]

    def run(self) -> Exported:
        """All edits; all problems together."""
        self.problems: list[Problem] = []
        self.notes: list[str] = []
        self.dropped: list[str] = []
        home = self.stages[self.made.release]
        linked = {p for p, owner in self.made.own.items() if owner == self.overlay.id}
        patches = self._read_patches()
        rewrites: list[Rewrite] = []
        fits: list[Problem] = []
        self._refuse_outdated(home)
        for path in sorted(home.before):
            data = self._read(path)
            if path in linked or path.endswith(_COMPILED):
                continue
            if data is None:
                self._fail("E442", path, "was deleted", "put it back: an overlay deletes nothing")
            elif data != home.before[path] or path in patches:
                try:
                    rewrites += self._export_file(path, data, patches.get(path), home)
                except ApplyError as error:
                    fits += (replace(p, overlay=self.overlay.id) for p in error.problems)
        for path in sorted(linked):
            if self._read(path) is None and path not in self.drop:
                hint = f"if it is meant: delete it in overlays/{self.overlay.id}, or --drop {path}"
                self._fail("E442", path, "of the overlay was deleted here", hint)
        known = {*home.before, *linked}
        new_files = {p: self._need(p) for p in self._walk() if p not in known}
        if self.problems:
            raise DefinitionError(*self.problems)
        if fits:
            raise ApplyError(*fits)
        return Exported(tuple(rewrites), new_files, tuple(self.dropped), tuple(self.notes))

    def _refuse_outdated(self, home: Stage) -> None:
        """E444 where what the overlay requires is no longer what the tree was made with."""
        paths = sorted({landing.patch.target for landing in home.required})
        then = read_committed(self.root, self.made.base, paths)
        changed = [path for path in paths if then.get(path) != home.before[path]]
        if changed:
            what = f"and {len(changed) - 1} more were patched otherwise when this tree was made"
            hint = "make a new tree with `apply DIR --edit`, and bring your edits over"
            self._fail("E444", changed[0], what, hint)
            raise DefinitionError(*self.problems)

    def _read_patches(self) -> dict[str, tuple[bytes, Patch]]:
        found = {}
        for name, data in self.overlay.patches_for(self.made.release, self.survey.order).items():
            patch = parse_patch(data, name=name)
            if patch.target not in self.stages[self.made.release].skipped:
                found[patch.target] = (data, patch)
        return found

    def _read(self, path: str) -> bytes | None:
        place = self.root / path
        return place.read_bytes() if place.is_file() else None

    def _need(self, path: str) -> bytes:
        if path.partition("/")[0] not in ("megatron", "mindspeed"):
            hint = "only files under megatron/ and mindspeed/ are packaged: move it, or remove it"
            self._fail("E443", path, "is new and has no place in an overlay", hint)
        return (self.root / path).read_bytes()

    def _walk(self) -> Iterator[str]:
        for place in sorted(self.root.rglob("*.py")):
            parts = place.relative_to(self.root).parts
            if not _IGNORED & set(parts) and place.is_file():
                yield "/".join(parts)

    def _export_file(
        self, path: str, data: bytes, known: tuple[bytes, Patch] | None, home: Stage
    ) -> Iterator[Rewrite]:
        before = home.before[path]
        if path not in home.pristine:
            owner = self.made.own.get(path, "another overlay")
            hint = f"edit it with `mindspeed-overlay apply DIR --edit {owner}`"
            self._fail("E441", path, f"was edited, and is {owner}'s", hint)
            return
        self._refuse_foreign(path, before, data, home)
        model = known[1] if known else self._start_patch(path)
        made = rewrite_patch(
            self.overlay.id, path, data, model=model, home=home, stages=self.stages
        )
        if made is None:
            if known is None:
                self.notes.append(f"{path}: only comments or white space changed: not exported")
            elif path in self.drop:
                self.dropped.append(known[1].name)
            else:
                hint = f"if it is meant, say so: --drop {path}"
                self._fail("E442", path, "has none of the patch's edits any more", hint)
            return
        self.notes += (
            f"{path}:{line}: only comments or white space changed: not exported"
            for line in made.idle_lines
        )
        if known is None and not (self.new.subject and self.new.reason):
            hint = "give --subject and --reason, which its header will hold"
            self._fail("E440", path, "gets its first patch, and nothing says why", hint)
            return
        old = known[0] if known else b""
        new = made.data
        if known and made.patch.hunks != known[1].hunks:
            patch = replace(
                made.patch, header={**made.patch.header, "Last-Update": (self.new.date,)}
            )
            new = serialize_patch(patch)
        yield Rewrite(self.overlay.id, self.since, model.name, old, new)

    def _refuse_foreign(self, path: str, before: bytes, after: bytes, home: Stage) -> None:
        """E441 for edits of lines that an overlay brought which this one requires."""
        found = [landing for landing in home.required if landing.patch.target == path]
        foreign = {
            line: r.overlay
            for r in trace_lines(found).get(path, ())
            for line in range(r.first, r.last + 1)
        }
        for i1, i2, j1, _ in diff_lines(split_lines(before), split_lines(after)):
            owners = {foreign[k] for k in range(i1 + 1, i2 + 1) if k in foreign}
            for owner in sorted(owners):
                hint = f"edit them with `mindspeed-overlay apply DIR --edit {owner}`"
                self._fail("E441", f"{path}:{j1 + 1}", f"changes lines of {owner}", hint)

    def _start_patch(self, path: str) -> Patch:
        header = {
            "Subject": (self.new.subject or "(none yet)",),
            "Feature": (self.overlay.id,),
            "Origin": ("mindspeed-overlay, written for this overlay",),
            "Forwarded": ("no",),
            "Last-Update": (self.new.date,),
            "Remove-When": (self.overlay.remove_when or "the overlay is removed",),
        }
        return Patch(name_patch(path), path, header, self.new.reason, ())

    def _fail(self, code: str, path: str, what: str, hint: str) -> None:
        self.problems.append(
            Problem(
                code=code,
                overlay=self.overlay.id,
                path=path,
                message=f"{path} {what}",
                hint=hint,
            )
        )
