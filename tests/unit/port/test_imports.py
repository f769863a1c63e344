"""Foreign patches: read, made into overlays, and what is left out."""

from pathlib import Path

import pytest

from mindspeed_overlay.apply import apply_patches
from mindspeed_overlay.errors import ApplyError, DefinitionError
from mindspeed_overlay.patch import check_header, parse_patch
from mindspeed_overlay.port.diffs import apply_diff, read_diff
from mindspeed_overlay.port.imports import Imported, import_diffs, read_folder, write_imported
from mindspeed_overlay.source.transport import run_git
from unit.port.port_sets import MLP, TAGS, load, text

BASE = text("""
    import os


    def scale(x):
        y = x * 2
        y = y + 1
        return y
""")
NEW = "megatron/core/new.py"
DIFF = b"""\
diff --git a/megatron/core/mlp.py b/megatron/core/mlp.py
old mode 100755
new mode 100644
index 1111111..2222222
--- a/megatron/core/mlp.py
+++ b/megatron/core/mlp.py
@@ -4,4 +4,5 @@ def scale(x):
 def scale(x):
     y = x * 2
+    y = y * 3
     y = y + 1
     return y
diff --git a/megatron/core/new.py b/megatron/core/new.py
new file mode 100644
index 0000000..3333333
--- /dev/null
+++ b/megatron/core/new.py
@@ -0,0 +1,2 @@
+x = 1
+y = 2
\\ No newline at end of file
diff --git a/tools/new.py b/tools/new.py
new file mode 100644
--- /dev/null
+++ b/tools/new.py
@@ -0,0 +1 @@
+x = 1
diff --git a/megatron/core/old.py b/megatron/core/old.py
deleted file mode 100644
--- a/megatron/core/old.py
+++ /dev/null
@@ -1 +0,0 @@
-x = 1
diff --git a/megatron/core/a.py b/megatron/core/b.py
similarity index 100%
rename from megatron/core/a.py
rename to megatron/core/b.py
"""
TREE = {MLP: BASE, "megatron/core/old.py": b"x = 1\n", "megatron/core/a.py": b""}


def take(*diffs: bytes) -> Imported:
    named = [(f"{n}.patch", data) for n, data in enumerate(diffs)]
    return import_diffs(
        named, TREE, overlay="mine/all", tag=TAGS[0], today="2026-01-02", origin="x.patch"
    )


def test_an_imported_diff_gives_canonical_patches_and_new_files() -> None:
    imported = take(DIFF)
    (data,) = imported.patches.values()
    patch = parse_patch(data, name="megatron.core.mlp.patch")
    assert check_header(patch, overlay="mine/all", releases=[TAGS[0]]) == []
    assert patch.symbols == ("scale",)
    assert apply_patches(TREE, [("mine/all", patch)])[MLP].count(b"y = y * 3\n") == 1
    assert imported.files == {NEW: b"x = 1\ny = 2"}


def test_what_an_overlay_cannot_hold_is_left_out_and_told() -> None:
    left_out = dict(take(DIFF).left_out)
    assert set(left_out) == {"tools/new.py", "megatron/core/old.py", "megatron/core/b.py"}
    assert "deleted" in left_out["megatron/core/old.py"]
    assert "renamed" in left_out["megatron/core/b.py"]


def test_two_diffs_of_one_file_become_one_patch() -> None:
    second = b"""\
--- a/megatron/core/mlp.py
+++ b/megatron/core/mlp.py
@@ -6,3 +6,4 @@
     y = y * 3
+    y = y * 4
     y = y + 1
     return y
"""
    assert len(take(DIFF, second).patches) == 1


def test_an_imported_overlay_is_loaded_like_any_other(tmp_path: Path) -> None:
    write_imported(take(DIFF), tmp_path, overlay="mine/all", tag=TAGS[0])
    (overlay,) = load(tmp_path).overlays
    assert list(overlay.patches_for(TAGS[1], TAGS)) == ["megatron.core.mlp.patch"]
    assert overlay.files_for(TAGS[1], TAGS) == {NEW: b"x = 1\ny = 2"}
    with pytest.raises(DefinitionError, match="E408"):
        write_imported(take(DIFF), tmp_path, overlay="mine/all", tag=TAGS[0])


def test_every_hunk_that_does_not_fit_is_named() -> None:
    wrong = DIFF.replace(b"     y = x * 2\n", b"     y = x * 9\n")
    with pytest.raises(ApplyError, match=r"E502.*hunk 1") as caught:
        take(wrong, wrong)
    assert len(caught.value.problems) == 2


def test_a_moved_hunk_is_taken_only_where_its_lines_stand_once() -> None:
    (file,) = read_diff(DIFF.partition(b"diff --git a/megatron/core/new.py")[0], name="p")
    assert b"y = y * 3" in apply_diff(b"# above\n" + BASE, file)
    with pytest.raises(ApplyError, match="E503"):
        apply_diff(b"# above\n" + BASE + BASE, file)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "E515"),
        (b"no diff here\n", "E515"),
        (
            DIFF.replace(b"a/megatron/core/mlp.py", b"a/../x").replace(
                b"b/megatron/core/mlp.py", b"b/../x"
            ),
            "E512",
        ),
        (DIFF[: DIFF.index(b"     y = y + 1")], "E516"),
        (b"G\0" + DIFF, "E510"),
    ],
)
def test_a_diff_that_cannot_be_read_is_refused_by_code(data: bytes, code: str) -> None:
    with pytest.raises(ApplyError, match=code):
        read_diff(data, name="p")


def test_plain_diffs_without_git_lines_are_read() -> None:
    plain = b"--- a/x.py\t2020-01-01\n+++ b/x.py\t2020-01-02\n@@ -1 +1 @@\n-a\n+b\n"
    (file,) = read_diff(plain, name="p")
    assert (file.path, file.kind) == ("x.py", "changed")
    assert apply_diff(b"a\n", file) == b"b\n"


def test_a_folder_of_diffs_is_read_in_order_of_names(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b/x.patch").write_bytes(b"2")
    (tmp_path / "a.diff").write_bytes(b"1")
    (tmp_path / "README").write_bytes(b"no")
    assert [name for name, _ in read_folder(tmp_path)] == ["a.diff", "b/x.patch"]


def test_a_branch_gives_what_it_changed_since_a_tag(tmp_path: Path) -> None:
    from mindspeed_overlay.port.imports import read_branch

    run_git(tmp_path, ["init", "--initial-branch=main", "--template="])
    identity = ["-c", "user.name=A", "-c", "user.email=a@localhost"]
    (tmp_path / MLP).parent.mkdir(parents=True)
    for data, tag in ((BASE, "one"), (BASE + b"\n\nz = 1\n", "two")):
        (tmp_path / MLP).write_bytes(data)
        run_git(tmp_path, ["add", "-A"])
        run_git(tmp_path, [*identity, "commit", "-q", "-m", tag])
        run_git(tmp_path, ["tag", tag])
    (diff,) = read_branch(tmp_path, "one", "two")
    (file,) = read_diff(diff[1], name="two")
    assert apply_diff(BASE, file) == BASE + b"\n\nz = 1\n"
