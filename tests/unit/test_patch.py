"""Patch files: what is read, what is refused, and by which code."""

import re
from dataclasses import replace

import pytest

from mindspeed_overlay.apply import apply_patch
from mindspeed_overlay.errors import ApplyError
from mindspeed_overlay.patch import (
    Hunk,
    Patch,
    check_header,
    invert_patch,
    make_patch,
    parse_patch,
    serialize_patch,
)

GOOD = b"""Subject: Call the hook
Feature: fusions/hook
Target: megatron/core/mlp.py
Base-Blob: core_v0.16.1 0123456789012345678901234567890123456789
Symbol: MLP.forward, build
Origin: mindspeed-overlay
Forwarded: not-needed
Last-Update: 2025-06-01
Remove-When: upstream has a hook

The hook takes the place of relu.

It is off by default.

--- a/megatron/core/mlp.py
+++ b/megatron/core/mlp.py
@@ -8,3 +8,3 @@ MLP.forward
         y = self.up(x)
-        y = torch.relu(y)
+        y = hook(y)
         return self.down(y)
@@ -17,2 +17,3 @@ build
 def build(config):
+
     return MLP(config)
"""


def faults(data: bytes) -> list[tuple[str, int]]:
    """The codes and lines with which a patch is refused."""
    with pytest.raises(ApplyError) as caught:
        parse_patch(data, name="x.patch")
    problems = caught.value.problems
    assert all(p.patch == "x.patch" and p.hint and "x.patch" in p.message for p in problems)
    return [(problem.code, problem.line) for problem in problems]


def spoil(old: bytes, new: bytes) -> bytes:
    assert old in GOOD
    return GOOD.replace(old, new)


def test_a_good_patch_is_read_and_written_back_byte_for_byte() -> None:
    patch = parse_patch(GOOD, name="megatron.core.mlp.patch")
    assert patch.target == "megatron/core/mlp.py"
    assert patch.symbols == ("MLP.forward", "build")
    assert patch.base_blobs == {"core_v0.16.1": "0123456789" * 4}
    assert patch.reason == "The hook takes the place of relu.\n\nIt is off by default."
    assert patch.hunks[1] == Hunk(
        17, 17, (b" def build(config):\n", b"+\n", b"     return MLP(config)\n"), "build"
    )
    assert serialize_patch(patch) == GOOD
    assert check_header(patch, overlay="fusions/hook", releases=["core_v0.16.1"]) == []


def test_lines_of_git_diff_are_understood_and_not_kept() -> None:
    git = (
        b"diff --git a/megatron/core/mlp.py b/megatron/core/mlp.py\nindex 1234567..89abcde 100644\n"
    )
    data = spoil(b"--- a/", git + b"--- a/")
    assert serialize_patch(parse_patch(data, name="x.patch")) == GOOD


ONLY_DIFF = GOOD[GOOD.index(b"--- a/") :]
HEADER = GOOD[: GOOD.index(b"--- a/")]
NAMES = b"--- a/megatron/core/mlp.py\n+++ b/megatron/core/mlp.py\n"
SECOND = NAMES.replace(b"mlp", b"moe") + b"@@ -1 +1 @@ <module>\n-a\n+b\n"


def git_lines(*lines: bytes) -> bytes:
    first = b"diff --git a/megatron/core/mlp.py b/megatron/core/mlp.py"
    return HEADER + b"\n".join((first, *lines, b"")) + ONLY_DIFF


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param(b"", [("E515", 0)], id="empty file"),
        pytest.param(HEADER, [("E515", 0)], id="header without diff"),
        pytest.param(HEADER + NAMES, [("E515", 16)], id="no hunks"),
        pytest.param(GOOD + b" " * (1 << 20) + b"\n", [("E510", 0)], id="oversized"),
        pytest.param(GOOD.decode().encode("utf-16"), [("E510", 0)], id="UTF-16 with a mark"),
        pytest.param(GOOD.decode().encode("utf-16-le"), [("E510", 1)], id="UTF-16 without"),
        pytest.param(spoil(b"hook(y)", b"hook(\0)"), [("E510", 20)], id="NUL byte"),
        pytest.param(b"\xef\xbb\xbf" + GOOD, [("E510", 0)], id="byte order mark"),
        pytest.param(GOOD[:-1], [("E510", 25)], id="cut off"),
        pytest.param(spoil(b"the hook", b"\xff"), [("E511", 1)], id="header not UTF-8"),
        pytest.param(spoil(b"Origin:", b"Origin"), [("E511", 6)], id="not a field"),
        pytest.param(spoil(b"Origin:", b"Feature:"), [("E511", 6)], id="a field twice"),
        pytest.param(ONLY_DIFF, [("E511", 1)], id="no header"),
        pytest.param(
            spoil(b"megatron/core/mlp.py", b"/etc/passwd"), [("E512", n) for n in (3, 15, 16)],
            id="absolute path behind a/",
        ),
        pytest.param(
            spoil(b"--- a/megatron", b"--- /megatron"), [("E513", 0), ("E512", 15)],
            id="absolute path",
        ),
        pytest.param(
            spoil(b"core/mlp", b"../../mlp"), [("E512", n) for n in (3, 15, 16)], id="dot-dot"
        ),
        pytest.param(
            spoil(b"megatron/core/mlp.py", b".git/hooks/x"), [("E512", n) for n in (3, 15, 16)],
            id=".git",
        ),
        pytest.param(
            spoil(b"core/mlp.py", b".GIT/config"), [("E512", n) for n in (3, 15, 16)], id=".GIT"
        ),
        pytest.param(
            spoil(b"b/megatron/core/mlp.py", b"b/megatron/core/moe.py"), [("E513", 0)],
            id="+++ names another file",
        ),
        pytest.param(
            spoil(b"Target: megatron/core/mlp", b"Target: megatron/core/moe"), [("E513", 0)],
            id="Target names another file",
        ),
        pytest.param(spoil(b"--- a/", b"--- "), [("E513", 15)], id="no a/"),
        pytest.param(
            spoil(b"--- a/megatron/core/mlp.py", b"--- /dev/null"), [("E514", 15)], id="new file"
        ),
        pytest.param(
            spoil(b"+++ b/megatron/core/mlp.py", b"+++ /dev/null"), [("E514", 16)],
            id="deleted file",
        ),
        pytest.param(
            git_lines(b"new file mode 100644"), [("E514", 16)], id="new file of git"
        ),
        pytest.param(
            git_lines(b"deleted file mode 100644"), [("E514", 16)], id="deleted file of git"
        ),
        pytest.param(
            git_lines(b"old mode 100644", b"new mode 100755"), [("E514", 16), ("E514", 17)],
            id="mode change",
        ),
        pytest.param(
            git_lines(b"similarity index 90%", b"rename from x", b"rename to y"),
            [("E514", 16), ("E514", 17), ("E514", 18)],
            id="rename",
        ),
        pytest.param(
            git_lines(b"copy from x", b"copy to y"), [("E514", 16), ("E514", 17)], id="copy"
        ),
        pytest.param(
            HEADER + b"GIT binary patch\nliteral 3\nKc$@*\n", [("E514", 15)], id="binary of git"
        ),
        pytest.param(
            HEADER + b"Binary files a/x and b/x differ\n", [("E514", 15)], id="binary of diff"
        ),
        pytest.param(HEADER + b"3c\nx = 1\n.\n", [("E514", 15)], id="ed script"),
        pytest.param(
            HEADER + NAMES + b"1,2d\n!touch x\n", [("E514", 17)], id="ed script behind names"
        ),
        pytest.param(
            HEADER + b"*** a/x\n*** 1,2 ****\n", [("E514", 15)], id="context diff"
        ),
        pytest.param(GOOD + SECOND, [("E514", 26)], id="two files"),
        pytest.param(GOOD + b"diff --git a/x b/x\n", [("E514", 26)], id="two files of git"),
        pytest.param(GOOD + b"-- \n2.39.5\n", [("E516", 26)], id="signature of git"),
        pytest.param(GOOD + b"\n", [("E516", 26)], id="empty line at the end"),
        pytest.param(spoil(b"-8,3 +8,3", b"-8,4 +8,4"), [("E516", 17)], id="counts too big"),
        pytest.param(spoil(b"-8,3 +8,3", b"-8,2 +8,2"), [("E516", 21)], id="counts too small"),
        pytest.param(spoil(b"-8,3 +8,3", b"-8,3 +8,2"), [("E516", 17)], id="one count too small"),
        pytest.param(spoil(b"@@ -17", b"@@ 17"), [("E516", 22)], id="no hunk head"),
        pytest.param(spoil(b"+\n ", b"+\n\n "), [("E517", 25), ("E516", 26)], id="empty line"),
        pytest.param(
            HEADER + NAMES + b"@@ -1,3 +1,3 @@ f\n a\n\n-b\n+c\n", [("E517", 19)],
            id="blank context stripped",
        ),
        pytest.param(spoil(b"-17,2", b"-10,2"), [("E518", 22)], id="overlapping hunks"),
        pytest.param(spoil(b"-17,2", b"-2,2"), [("E518", 22)], id="unordered hunks"),
        pytest.param(spoil(b"+17,3", b"+18,3"), [("E518", 22)], id="wrong new start"),
        pytest.param(
            spoil(b"-        y = torch.relu(y)\n+        y = hook(y)\n", b"         y\n"),
            [("E515", 17)],
            id="hunk without a change",
        ),
        pytest.param(
            HEADER + NAMES + b"@@ -4,0 +5 @@ f\n+x\n", [("E515", 17)], id="no context"
        ),
        pytest.param(spoil(b" @@ build", b" @@"), [("E519", 22)], id="no symbol"),
        pytest.param(
            spoil(b" @@ build", b" @@ def build(config):"), [("E519", 22)], id="heading of git"
        ),
        pytest.param(spoil(b", build", b""), [("E519", 5)], id="Symbol lacks one"),
        pytest.param(spoil(b", build", b", build, x"), [("E519", 5)], id="Symbol has one more"),
        pytest.param(
            spoil(b" y = hook(y)\n", b" y = hook(y)\n\\ No newline at end of file\n"),
            [("E516", 17)],
            id="no-newline marker in the middle",
        ),
    ],
)  # fmt: skip
def test_a_bad_patch_is_refused_by_code_and_line(
    data: bytes, expected: list[tuple[str, int]]
) -> None:
    assert faults(data) == expected


def test_an_end_without_newline_must_be_the_last_hunk() -> None:
    data = spoil(b"return self.down(y)\n", b"return self.down(y)\n\\ No newline at end of file\n")
    assert faults(data) == [("E516", 0)]


def test_all_faults_of_a_file_are_reported_together() -> None:
    data = spoil(b"Origin:", b"Origin").replace(b"-17,2", b"-2,2").replace(b" y = up", b"")
    assert faults(data.replace(b"--- a/megatron", b"--- a/../megatron")) == [
        ("E513", 0),
        ("E511", 6),
        ("E512", 15),
        ("E518", 22),
    ]


def test_a_patch_file_whose_every_line_ends_in_crlf_is_read_as_meant_for_a_crlf_file() -> None:
    before = b"a\r\nb\r\nc"
    after = b"a\r\nB\r\nc\r\n"
    patch = make_patch(before, after, target="x.txt", header={}, symbol_of=lambda _: "<module>")
    data = serialize_patch(patch)
    crlf = re.sub(rb"\r?\n", b"\r\n", data)
    assert parse_patch(data, name=patch.name) == parse_patch(crlf, name=patch.name) == patch
    assert apply_patch(before, patch, span_of=lambda _: None).data == after


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"Subject": ()}, "no Subject"),
        ({"Feature": ("a/b",)}, "Feature is a/b, the folder is fusions/hook"),
        ({"Base-Blob": ("core_v0.16.1 abc",)}, "'core_v0.16.1 abc' is not"),
        ({"Base-Blob": ("core_v0.12.1 " + "0" * 40,)}, "no Base-Blob for core_v0.16.1"),
        ({"Base-Blob": ("core_v0.16.1 " + "0" * 40,) * 2}, "two Base-Blob lines"),
        ({"Last-Update": ("yesterday",)}, "Last-Update yesterday is not"),
        ({"Sybmol": ("x",)}, "unknown field Sybmol"),
    ],
)
def test_check_header_names_what_is_missing(
    change: dict[str, tuple[str, ...]], message: str
) -> None:
    patch = parse_patch(GOOD, name="megatron.core.mlp.patch")
    patch = replace(patch, header={**patch.header, **change})
    (problem,) = check_header(patch, overlay="fusions/hook", releases=["core_v0.16.1"])
    assert problem.code == "E511"
    assert message in problem.message


def test_a_large_patch_says_why() -> None:
    lines = b"".join(b"line %d\n" % n for n in range(30))
    patch = make_patch(
        b"x\n", b"x\n" + lines, target="x.py", header={}, symbol_of=lambda _: "<module>"
    )
    found = [p.message for p in check_header(patch, overlay="a/b", releases=[])]
    assert any("30 changed lines, over 20, and no Why-Large" in message for message in found)
    large = replace(patch, header={**patch.header, "Why-Large": ("a table",)})
    found = [p.message for p in check_header(large, overlay="a/b", releases=[])]
    assert not any("changed lines" in message for message in found)


@pytest.mark.parametrize("reason", ["\nx", "x\n", "x\r\ny", "--- x", "a\ndiff --git x"])
def test_a_reason_that_would_be_read_back_differently_is_not_written(reason: str) -> None:
    patch = replace(parse_patch(GOOD, name="x.patch"), reason=reason)
    with pytest.raises(ValueError, match="reason"):
        serialize_patch(patch)


def test_undoing_an_undone_patch_gives_the_patch() -> None:
    patch = parse_patch(GOOD, name="x.patch")
    undone = invert_patch(patch)
    assert undone.hunks[1] == Hunk(
        17, 17, (b" def build(config):\n", b"-\n", b"     return MLP(config)\n"), "build"
    )
    assert invert_patch(undone).hunks == patch.hunks
    assert undone.base_blobs == {}


def make(before: bytes, after: bytes) -> Patch:
    return make_patch(before, after, target="x.py", header={}, symbol_of=lambda _: "<module>")


def test_context_is_one_line_where_that_is_enough() -> None:
    (hunk,) = make(b"a\nb\nc\nd\ne\n", b"a\nb\nC\nd\ne\n").hunks
    assert hunk.lines == (b" b\n", b"-c\n", b"+C\n", b" d\n")


def test_context_grows_until_the_place_is_unique() -> None:
    before = b"one\n\nx\n\ntwo\n\nx\n\nthree\n"
    (hunk,) = make(before, b"one\n\nx\n\ntwo\n\ny\n\nthree\n").hunks
    assert hunk.lines == (b" two\n", b" \n", b"-x\n", b"+y\n", b" \n", b" three\n")


def test_context_stops_at_three_lines() -> None:
    (hunk,) = make(b"x\n" * 20, b"x\n" * 9 + b"y\n" + b"x\n" * 11).hunks
    assert len(hunk.lines) == 3 + 1 + 3
    assert hunk.inserts


def test_changes_with_shared_context_are_one_hunk() -> None:
    assert len(make(b"a\nb\nc\nd\n", b"A\nb\nc\nD\n").hunks) == 1
    assert len(make(b"a\nb\nc\nd\ne\n", b"A\nb\nc\nd\nE\n").hunks) == 2


def test_equal_and_binary_texts_make_no_patch() -> None:
    with pytest.raises(ValueError, match="nothing was changed"):
        make(b"a", b"a")
    with pytest.raises(ValueError, match="binary"):
        make(b"a", b"\0")
