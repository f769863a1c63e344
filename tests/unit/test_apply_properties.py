"""Properties of patches over generated texts, and the same edits made by real git."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from mindspeed_overlay.apply import apply_patch, apply_patches
from mindspeed_overlay.errors import ApplyError
from mindspeed_overlay.patch import (
    Patch,
    invert_patch,
    make_patch,
    name_patch,
    parse_patch,
    serialize_patch,
    split_lines,
)
from mindspeed_overlay.patch_diff import diff_lines

TARGET = "a/b.txt"
SETTINGS = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

# Few different lines, so that places repeat; odd bytes, line ends and file ends are all frequent.
LINE = st.sampled_from(
    [
        b"",
        b"a",
        b"b",
        b"    x = 1",
        b"\xe9\xff",
        b"-- a/b",
        b"\\ No newline",
        b"\r",
        b"c\r",
        b"\x0c",
    ]
)
TEXT = st.builds(
    lambda lines, end: b"".join(line + b"\n" for line in lines) + end,
    st.lists(LINE, max_size=14),
    st.sampled_from([b"", b"", b"z", b"a"]),
)


@st.composite
def edits(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """A text and an edited copy of it, different from it."""
    before = draw(TEXT)
    lines = split_lines(before)
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(lines)))
        end = draw(st.integers(start, min(start + 3, len(lines))))
        lines[start:end] = split_lines(draw(TEXT))[:4]
    # A line without a line feed may only be the last.
    whole = [line if line.endswith(b"\n") else line + b"\n" for line in lines[:-1]]
    after = b"".join([*whole, *lines[-1:]])
    assume(before != after)
    return before, after


def symbol_of(line: int) -> str:
    return "<module>"


def make(before: bytes, after: bytes, target: str = TARGET) -> Patch:
    header = {"Subject": ("A subject",), "Base-Blob": ("core_v1 " + blob_of(before),)}
    return make_patch(before, after, target=target, header=header, symbol_of=symbol_of)


def blob_of(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def apply(data: bytes, patch: Patch) -> bytes:
    whole = (1, data.count(b"\n") + 1)
    return apply_patch(data, patch, span_of=lambda _: whole).data


@SETTINGS
@given(TEXT, TEXT)
def test_a_diff_rebuilds_both_sides(before: bytes, after: bytes) -> None:
    old, new = split_lines(before), split_lines(after)
    assert b"".join(old) == before
    rebuilt: list[bytes] = []
    at = last = 0
    for i1, i2, j1, j2 in diff_lines(old, new):
        assert i1 > at or at == 0 or j1 > last
        rebuilt += old[at:i1]
        assert len(rebuilt) == j1
        rebuilt += new[j1:j2]
        at, last = i2, j2
    assert rebuilt + old[at:] == new


@SETTINGS
@given(edits())
def test_applying_a_made_patch_gives_the_edited_text(texts: tuple[bytes, bytes]) -> None:
    before, after = texts
    assert apply(before, make(before, after)) == after


@SETTINGS
@given(edits())
def test_reading_a_written_patch_gives_it_back(texts: tuple[bytes, bytes]) -> None:
    patch = make(*texts)
    data = serialize_patch(patch)
    again = parse_patch(data, name=patch.name)
    assert again == patch
    assert serialize_patch(again) == data


@SETTINGS
@given(edits())
def test_the_undoing_patch_gives_the_first_text(texts: tuple[bytes, bytes]) -> None:
    before, after = texts
    undo = invert_patch(make(before, after))
    undo = Patch(undo.name, undo.target, {"Base-Blob": ("x " + blob_of(after),)}, "", undo.hunks)
    assert apply(after, parse_patch(serialize_patch(undo), name=undo.name)) == before


@SETTINGS
@given(edits())
def test_applying_a_made_patch_twice_is_an_error(texts: tuple[bytes, bytes]) -> None:
    before, after = texts
    with pytest.raises(ApplyError):
        apply(after, make(before, after))


def apply_in_order(before: bytes, *patches: Patch) -> bytes | set[str]:
    """The result, or the codes of what failed."""
    try:
        return apply_patches({TARGET: before}, [("x", patch) for patch in patches])[TARGET]
    except ApplyError as error:
        return {problem.code for problem in error.problems}


@SETTINGS
@given(edits(), edits())
def test_a_patch_after_another_lands_right_or_is_refused_as_unsure(
    first: tuple[bytes, bytes], second: tuple[bytes, bytes]
) -> None:
    middle = b"".join(b"unique %d\n" % n for n in range(8))
    old_top, new_top, old_end, new_end = (text + b"\n" for text in (*first, *second))
    before = old_top + middle + old_end
    top = make(before, new_top + middle + old_end)
    end = make(before, old_top + middle + new_end)
    for order in ((top, end), (end, top)):
        result = apply_in_order(before, *order)
        assert result == new_top + middle + new_end or result in ({"E503"}, {"E505"})


@SETTINGS
@given(edits(), edits())
def test_independent_patches_commute(
    first: tuple[bytes, bytes], second: tuple[bytes, bytes]
) -> None:
    # The same texts with every line made unlike all others.
    sides = [
        [b"%d %d " % (part, n) + line for n, line in enumerate(split_lines(text + b"\n"))]
        for part, texts in enumerate((first, second))
        for text in texts
    ]
    old_top, new_top, old_end, new_end = map(b"".join, sides)
    assume(old_top != new_top and old_end != new_end)
    # What a deletion at the end of a file leaves stands there before it too: refused, as above.
    assume(not old_end.startswith(new_end))
    middle = b"".join(b"unique %d\n" % n for n in range(8))
    before = old_top + middle + old_end
    top = make(before, new_top + middle + old_end)
    end = make(before, old_top + middle + new_end)
    assert apply_in_order(before, top, end) == new_top + middle + new_end
    assert apply_in_order(before, end, top) == new_top + middle + new_end


@SETTINGS
@given(edits(), st.integers(0, 200), st.binary(max_size=3))
def test_a_damaged_patch_is_refused_or_proved_but_never_crashes(
    texts: tuple[bytes, bytes], at: int, junk: bytes
) -> None:
    before, after = texts
    data = serialize_patch(make(before, after))
    at = len(data) - min(at, len(data))
    try:
        patch = parse_patch(data[:at] + junk + data[at + 1 :], name=name_patch(TARGET))
        result = apply(before, patch)
    except ApplyError:
        return
    undone = invert_patch(patch)
    lines = split_lines(result)
    for hunk in undone.hunks:
        assert lines[hunk.old_index : hunk.old_index + len(hunk.old)] == hunk.old


@pytest.fixture(scope="module")
def git_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert shutil.which("git"), "git is needed: the comparison is with the real one"
    folder = tmp_path_factory.mktemp("git")
    (folder / "a").mkdir()
    return folder


def git_apply(folder: Path, before: bytes, patch: bytes) -> bytes:
    (folder / TARGET).write_bytes(before)
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "GIT_CEILING_DIRECTORIES": str(folder)}
    command = ["git", "-c", "core.autocrlf=false", "apply", "--unidiff-zero"]
    command += ["--whitespace=nowarn", "-"]
    run = subprocess.run(
        command, input=patch, cwd=folder, env=env, capture_output=True, check=False
    )
    assert run.returncode == 0, run.stderr
    return (folder / TARGET).read_bytes()


@settings(parent=SETTINGS, max_examples=40)
@given(edits())
def test_git_applies_our_patches_to_the_same_bytes(
    git_folder: Path, texts: tuple[bytes, bytes]
) -> None:
    before, after = texts
    assume(before and after)  # git makes and removes files where a side is empty
    assert git_apply(git_folder, before, serialize_patch(make(before, after))) == after


@settings(parent=SETTINGS, max_examples=40)
@given(edits(), st.integers(1, 3))
def test_we_apply_patches_of_git_to_the_same_bytes(
    git_folder: Path, texts: tuple[bytes, bytes], context: int
) -> None:
    before, after = texts
    assume(before and after)
    (git_folder / "old").write_bytes(before)
    (git_folder / "new").write_bytes(after)
    command = ["git", "diff", "--no-index", f"-U{context}", "--no-color", "--text", "old", "new"]
    env = {"PATH": os.environ["PATH"], "HOME": str(git_folder)}
    run = subprocess.run(command, cwd=git_folder, env=env, capture_output=True, check=False)
    lines = split_lines(run.stdout)
    first = next(i for i, line in enumerate(lines) if line.startswith(b"@@ -"))
    lines = [
        line[: line.index(b" @@") + 3] + b" <module>\n" if line.startswith(b"@@ -") else line
        for line in lines[first:]
    ]
    head = f"Target: {TARGET}\nBase-Blob: x {blob_of(before)}\nSymbol: <module>\n\n"
    names = f"--- a/{TARGET}\n+++ b/{TARGET}\n"
    patch = parse_patch((head + names).encode() + b"".join(lines), name="x")
    assert apply(before, patch) == after
