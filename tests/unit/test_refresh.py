"""Refresh: canonical patches, edits brought back from a work tree, and what it must never do."""

import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindspeed_overlay.drift.survey import Survey
from mindspeed_overlay.errors import ApplyError, DefinitionError, UsageError
from mindspeed_overlay.patch import parse_patch
from mindspeed_overlay.plan import Selection, make_plan
from mindspeed_overlay.refresh.export import Exported, NewPatch, export_worktree
from mindspeed_overlay.refresh.sets import refresh_overlay
from mindspeed_overlay.tree import git_blob_id
from mindspeed_overlay.workrepo import write_repository
from mindspeed_overlay.worktree import read_worktree
from unit.overlay_sets import TAGS, write_overlay, write_series
from unit.upkeep_sets import MLP, RELEASES, hook, survey, write_patch, write_set

TARGET = "megatron/core/mlp.py"
PATCH = "megatron.core.mlp.patch"
NEW = NewPatch("Say so", "It is needed.", "2026-01-02")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_set(tmp_path / "overlays")


def refresh(root: Path, name: str = "base/one") -> dict[str, bytes]:
    """What refreshing would write."""
    made = survey(root)
    result = refresh_overlay(made, made.overlays.get(name))
    assert result.problems == ()
    return {f"{r.since}/{r.name}": r.new for r in result.rewrites if r.is_due}


def edit_tree(root: Path, tree: Path, *, name: str = "base/one", tag: str = "core_v1") -> Survey:
    """A work tree of one overlay, as `apply --edit` makes it."""
    made = survey(root)
    plan = make_plan(
        made.overlays, made.pins, made.pins.get(tag), selection=Selection(features=(name,))
    )
    links = {path: root / name / "files" / path for owner, path, _ in plan.files if owner == name}
    write_repository(plan, made.symbols(tag).files, tree, links=links, edits=name)
    return made


def export(made: Survey, tree: Path, new: NewPatch = NEW, drop: tuple[str, ...] = ()) -> Exported:
    note = read_worktree(tree)
    overlay = made.overlays.get(note.edits)
    return export_worktree(made, overlay, tree, note, new=new, drop=set(drop))


def codes(error: pytest.ExceptionInfo[DefinitionError]) -> list[str]:
    return [problem.code for problem in error.value.problems]


def change(tree: Path, old: str, new: str, path: str = TARGET) -> None:
    text = (tree / path).read_text()
    assert old in text
    (tree / path).write_text(text.replace(old, new))


def test_a_canonical_patch_is_left_as_it_is(root: Path) -> None:
    assert refresh(root) == {}


def test_stale_blobs_are_written_anew(root: Path) -> None:
    place = root / "base/one/patches/core_v1" / PATCH
    good = place.read_bytes()
    blob = git_blob_id(RELEASES["core_v3"][TARGET].encode()).encode()
    place.write_bytes(good.replace(b"core_v3 " + blob, b"core_v3 " + b"0" * 40))
    assert place.read_bytes() != good
    assert refresh(root) == {f"core_v1/{PATCH}": good}


def test_needless_context_is_dropped_and_the_header_kept(root: Path) -> None:
    place = root / "base/one/patches/core_v1" / PATCH
    good = place.read_bytes()
    wide = good.replace(b"@@ -1,2 +1,3 @@", b"@@ -1,3 +1,4 @@").replace(
        b"half\n \n", b"half\n \n from megatron.core.utils import divide\n"
    )
    assert len(parse_patch(wide, name=PATCH).hunks[0].lines) == 4
    place.write_bytes(wide)
    assert refresh(root) == {f"core_v1/{PATCH}": good}


def test_a_patch_that_no_longer_fits_a_release_it_serves_is_a_problem_not_a_loss(
    root: Path,
) -> None:
    broken = {**RELEASES["core_v3"], TARGET: MLP.replace("return y", "return z")}
    made = survey(root, {**RELEASES, "core_v3": broken})
    result = refresh_overlay(made, made.overlays.get("base/one"))
    assert [p.code for p in result.problems] == ["E502"]
    assert "core_v3" in result.problems[0].hint
    assert "port base/one" in result.problems[0].hint
    assert result.rewrites == ()


@pytest.mark.parametrize("tag", TAGS)
def test_an_untouched_tree_exports_the_overlay_as_it_is(
    root: Path, tmp_path: Path, tag: str
) -> None:
    made = edit_tree(root, tmp_path / "w", tag=tag)
    exported = export(made, tmp_path / "w")
    assert [r.is_due for r in exported.rewrites] == [False]
    assert (exported.new_files, exported.dropped, exported.notes) == ({}, (), ())


@pytest.mark.parametrize("tag", TAGS)
def test_one_edit_gives_one_patch_whatever_release_it_was_made_on(
    root: Path, tmp_path: Path, tag: str
) -> None:
    made = edit_tree(root, tmp_path / "w", tag=tag)
    change(tmp_path / "w", "y = half(y)\n", "y = half(y)\n        y = y + 1\n")
    (rewrite,) = export(made, tmp_path / "w").rewrites
    patch = parse_patch(rewrite.new, name=PATCH)
    old = parse_patch(rewrite.old, name=PATCH)
    after = hook(MLP).replace("y = half(y)\n", "y = half(y)\n        y = y + 1\n")
    expected = parse_patch(
        write_patch(MLP, after, target=TARGET, feature="base/one").encode(), name=PATCH
    )
    assert patch.hunks == expected.hunks
    assert patch.base_blobs == old.base_blobs
    assert list(patch.base_blobs) == list(TAGS)
    kept = {key: value for key, value in old.header.items() if key != "Last-Update"}
    assert {key: value for key, value in patch.header.items() if key != "Last-Update"} == kept
    assert patch.header["Last-Update"] == ("2026-01-02",)
    assert patch.reason == old.reason


def test_an_edit_that_fits_no_other_release_of_the_form_names_it_and_port(
    root: Path, tmp_path: Path
) -> None:
    made = edit_tree(root, tmp_path / "w", tag="core_v1")
    change(tmp_path / "w", "x = x + 0", "x = x + 2")  # core_v3 has x + 1 there
    with pytest.raises(ApplyError, match="port base/one --to core_v3"):
        export(made, tmp_path / "w")


def test_own_files_are_links_so_that_editing_them_edits_the_overlay(
    root: Path, tmp_path: Path
) -> None:
    tree = tmp_path / "w"
    made = edit_tree(root, tree)
    place = tree / "mindspeed/core/help.py"
    assert place.is_symlink()
    place.write_text(place.read_text() + "\n\nX = 1\n")
    own = root / "base/one/files/mindspeed/core/help.py"
    assert own.read_text().endswith("X = 1\n")
    assert export(made, tree).new_files == {}


def test_a_new_file_becomes_the_overlays_and_has_its_place(root: Path, tmp_path: Path) -> None:
    tree = tmp_path / "w"
    made = edit_tree(root, tree)
    (tree / "mindspeed/core/more.py").write_text("Y = 1\n")
    (tree / "mindspeed/core/__pycache__").mkdir()
    (tree / "mindspeed/core/__pycache__/x.py").write_text("")
    assert export(made, tree).new_files == {"mindspeed/core/more.py": b"Y = 1\n"}
    (tree / "scratch.py").write_text("")
    with pytest.raises(DefinitionError) as error:
        export(made, tree)
    assert codes(error) == ["E443"]


def test_a_first_patch_needs_its_reason(root: Path, tmp_path: Path) -> None:
    tree = tmp_path / "w"
    made = edit_tree(root, tree)
    change(tree, "return len(self.ranks)", "return len(self.ranks) + 0", "megatron/core/utils.py")
    with pytest.raises(DefinitionError) as error:
        export(made, tree, NewPatch("", "", "2026-01-02"))
    assert codes(error) == ["E440"]
    new = next(r for r in export(made, tree).rewrites if r.is_due)
    patch = parse_patch(new.new, name=new.name)
    assert (new.since, new.name, new.old) == ("core_v1", "megatron.core.utils.patch", b"")
    assert (patch.header["Subject"], patch.reason) == (("Say so",), "It is needed.")
    assert patch.header["Feature"] == ("base/one",)
    assert list(patch.base_blobs) == list(TAGS)


def test_comments_and_white_space_are_not_exported_and_that_is_said(
    root: Path, tmp_path: Path
) -> None:
    tree = tmp_path / "w"
    made = edit_tree(root, tree)
    change(tree, "SCALE = 2\n", "# two\nSCALE  =  2\n", "megatron/core/utils.py")
    change(tree, "class MLP:\n", "# ours\nclass MLP:\n")
    exported = export(made, tree)
    assert not any(r.is_due for r in exported.rewrites)
    assert len(exported.notes) == 2
    assert all("not exported" in note for note in exported.notes)


def test_nothing_is_deleted_without_being_told(root: Path, tmp_path: Path) -> None:
    tree = tmp_path / "w"
    made = edit_tree(root, tree)
    (tree / TARGET).write_text(MLP)
    (tree / "mindspeed/core/help.py").unlink()
    (tree / "megatron/core/utils.py").unlink()
    with pytest.raises(DefinitionError) as error:
        export(made, tree)
    assert codes(error) == ["E442"] * 3
    (tree / "megatron/core/utils.py").write_text(RELEASES["core_v1"]["megatron/core/utils.py"])
    exported = export(made, tree, drop=(TARGET, "mindspeed/core/help.py"))
    assert exported.dropped == (PATCH,)
    assert (root / "base/one/patches/core_v1" / PATCH).exists()  # only the command removes


@pytest.fixture
def two(root: Path) -> Path:
    """`base/two` requires `base/one` and edits the same function elsewhere."""
    once = hook(MLP)
    after = once.replace("self.size = divide", "self.two = 2\n        self.size = divide")
    text = write_patch(once, after, target=TARGET, feature="base/two", blobs=pristine(RELEASES))
    write_series(root, "base/one", "base/two")
    write_overlay(
        root, "base/two", 'requires = ["base/one"]\n', **{f"patches__core_v1__{PATCH}": text}
    )
    return root


def pristine(releases: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    return {tag: files[TARGET] for tag, files in releases.items()}


def test_an_overlay_over_another_is_exported_alone(two: Path, tmp_path: Path) -> None:
    assert refresh(two, "base/two") == {}
    made = edit_tree(two, tmp_path / "w", name="base/two")
    assert not any(r.is_due for r in export(made, tmp_path / "w").rewrites)
    change(tmp_path / "w", "self.two = 2", "self.two = 3")
    (rewrite,) = export(made, tmp_path / "w").rewrites
    assert rewrite.overlay == "base/two"
    patch = parse_patch(rewrite.new, name=PATCH)
    added = [line for hunk in patch.hunks for line in hunk.lines if line[:1] == b"+"]
    assert added == [b"+        self.two = 3\n"]


def test_an_edit_of_another_overlays_lines_or_files_is_noticed(two: Path, tmp_path: Path) -> None:
    tree = tmp_path / "w"
    made = edit_tree(two, tree, name="base/two")
    change(tree, "y = half(y)", "y = half(y + 1)")
    change(tree, "class Ours", "class Theirs", "mindspeed/core/help.py")
    with pytest.raises(DefinitionError) as error:
        export(made, tree)
    assert codes(error) == ["E441", "E441"]
    assert all("--edit base/one" in p.hint for p in error.value.problems)


def test_a_tree_that_was_made_with_another_requirement_is_refused(
    two: Path, tmp_path: Path
) -> None:
    edit_tree(two, tmp_path / "w", name="base/two")
    newer = hook(MLP).replace("half(y)", "half(y, 1)")
    text = write_patch(MLP, newer, target=TARGET, feature="base/one")
    (two / "base/one/patches/core_v1" / PATCH).write_text(text)
    with pytest.raises(DefinitionError) as error:
        export(survey(two), tmp_path / "w")
    assert codes(error) == ["E444"]


def test_a_folder_that_apply_did_not_make_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="E204"):
        read_worktree(tmp_path)


STATEMENTS = st.sampled_from(["x = x + 0", "y = x", "x = y", "return y", "y = half(y)", "pass"])
BODIES = st.lists(STATEMENTS, min_size=1, max_size=8)


@settings(max_examples=25, deadline=None)
@given(BODIES, BODIES)
def test_refresh_after_apply_is_the_identity(before: list[str], after: list[str]) -> None:
    """Whatever one function becomes, its patch applies, and refreshing it changes nothing."""
    old, new = (
        "def f(x, y):\n" + "".join(f"    {line}\n" for line in body) for body in (before, after)
    )
    if old == new or old.replace("    pass\n", "") == new:
        return
    releases = {tag: {TARGET: old} for tag in TAGS}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_series(root, "base/one")
        text = write_patch(old, new, target=TARGET, feature="base/one", blobs=pristine(releases))
        write_overlay(root, "base/one", **{f"patches__core_v1__{PATCH}": text})
        made = survey(root, releases)
        result = refresh_overlay(made, made.overlays.get("base/one"))
        assert result.problems == ()
        assert [r.new.decode() for r in result.rewrites] == [text]
