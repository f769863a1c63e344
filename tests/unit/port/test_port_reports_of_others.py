"""What went wrong for users of other patch tools when they moved on, and must not here.

The cases are those of public issue threads; each test says what a port does instead.
"""

from pathlib import Path

import pytest

from mindspeed_overlay.errors import ApplyError
from mindspeed_overlay.patch import parse_patch
from mindspeed_overlay.port.engine import run_port
from mindspeed_overlay.source.transport import run_git
from unit.port.port_sets import MLP, TAGS, make_job, make_tree, port_file, text, write_overlay
from unit.port.test_port_outcomes import notes, result
from unit.port.test_port_session import BASE, CLASH, EDITED, HOOK, Set, solve

OTHER = "megatron/core/other.py"


def test_an_edit_never_lands_in_a_twin_of_its_function(tmp_path: Path) -> None:
    """Offset and fuzz put hunks of others into a function that looked alike."""
    body = b"    y = x * 2\n    y = y + 1\n    return y\n"
    before = b"def one(x):\n" + body + b"\n\ndef two(x):\n" + body
    after = before.replace(b"    y = y + 1\n", HOOK + b"    y = y + 1\n", 1)
    new = b"def two(x):\n" + body + b"\n\ndef one(x):\n    return x\n"
    ported = port_file(tmp_path, before, after, new)
    assert ported.overlays[0].outcome == "conflict"
    assert ported.patches[0].pieces[0].symbol == "one"


def test_what_upstream_took_over_is_absorbed_and_never_taken_back(tmp_path: Path) -> None:
    """A tool took an absorbed patch for an applied one, and applied it in reverse."""
    ported = port_file(tmp_path, BASE, EDITED.replace(b"fused(y)", b"y"), EDITED)
    assert ported.overlays[0].is_open or ported.overlays[0].outcome == "absorbed"
    again = port_file(tmp_path / "again", BASE, CLASH, CLASH)
    assert again.overlays[0].outcome == "absorbed"
    assert again.overlays[0].forms() == {}


@pytest.mark.parametrize("blob", ["0" * 40, "f" * 40])
def test_a_stale_or_invented_base_hash_is_no_hindrance(tmp_path: Path, blob: str) -> None:
    """3-way merges of others need the blob that an index line names, and fail without it."""
    write_overlay(tmp_path, "fusions/one", {MLP: (BASE, EDITED)}, blobs={MLP: blob})
    new = BASE.replace(b"    y = x * 2\n", b"    y = 2 * x\n")
    trees = {TAGS[0]: make_tree({MLP: BASE}), TAGS[1]: make_tree({MLP: new})}
    ported = run_port(make_job(tmp_path, trees, first=TAGS[0]))
    assert HOOK in result(ported)


def test_bytes_that_are_no_utf8_are_carried_as_they_are(tmp_path: Path) -> None:
    """Others decode the files, and stop or change them."""
    latin = b"# caf\xe9\n"
    new = latin + BASE.replace(b"    y = x * 2\n", b"    y = 2 * x  # d\xe9j\xe0\n")
    ported = port_file(tmp_path, latin + BASE, latin + EDITED, new)
    merged = result(ported)
    assert merged.count(b"\xe9") == 2
    assert HOOK in merged


def test_all_conflicts_of_a_run_are_told_with_overlay_patch_hunk_and_line(tmp_path: Path) -> None:
    """Others stop at the first failure, or name no file."""
    other = BASE.replace(b"def scale", b"def widen")
    moved = CLASH.replace(b"def scale", b"def widen")
    write_overlay(tmp_path, "fusions/one", {MLP: (BASE, EDITED)})
    edited = other.replace(b"    y = y + 1\n", HOOK + b"    y = y + 1\n")
    write_overlay(tmp_path, "fusions/two", {OTHER: (other, edited)})
    old, new = ({MLP: a, OTHER: b} for a, b in ((BASE, other), (CLASH, moved)))
    ported = run_port(make_job(tmp_path, {TAGS[0]: make_tree(old), TAGS[1]: make_tree(new)}))
    found = [(p.overlay, p.target, q.hunk, q.symbol) for p in ported.patches for q in p.pieces]
    assert found == [("fusions/one", MLP, 1, "scale"), ("fusions/two", OTHER, 1, "widen")]
    assert all(q.line > 1 for p in ported.patches for q in p.pieces)


def test_a_patch_without_hunks_is_an_error_and_not_a_silent_nothing(tmp_path: Path) -> None:
    """A patch in another encoding had no effect, and nobody was told."""
    write_overlay(tmp_path, "fusions/one", {MLP: (BASE, EDITED)})
    place = tmp_path / "fusions/one/patches" / TAGS[0] / "megatron.core.mlp.patch"
    place.write_bytes(place.read_text("utf-8").encode("utf-16"))
    trees = {TAGS[0]: make_tree({MLP: BASE}), TAGS[1]: make_tree({MLP: BASE})}
    with pytest.raises(ApplyError):
        run_port(make_job(tmp_path, trees))


def test_a_user_without_a_name_and_with_a_signing_key_can_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others commit with the user's git, and ask for a name, or for the key's password."""
    config = tmp_path / "gitconfig"
    config.write_text(
        "[user]\n useConfigOnly = true\n[commit]\n gpgSign = true\n"
        "[gpg]\n program = /nowhere/gpg\n[core]\n hooksPath = /nowhere\n fsmonitor = true\n"
    )
    made = Set(tmp_path, {MLP: BASE}, {MLP: CLASH})
    write_overlay(made.overlays, "fusions/one", {MLP: (BASE, EDITED)})
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    monkeypatch.delenv("HOME", raising=False)
    assert made.start().exit_code == 5
    solve(made)
    assert made.go_on().exit_code == 0


def test_messages_of_a_git_in_another_language_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others read git's prose, which is translated."""
    for name in ("LANG", "LC_ALL", "LANGUAGE"):
        monkeypatch.setenv(name, "de_DE.UTF-8")
    made = Set(tmp_path, {MLP: BASE}, {MLP: CLASH})
    write_overlay(made.overlays, "fusions/one", {MLP: (BASE, EDITED)})
    assert made.start().exit_code == 5
    assert b"UU " in run_git(made.work / "tree", ["status", "--porcelain=v1"])


def test_a_rename_is_followed_with_its_similarity_and_an_unlike_file_is_not(
    tmp_path: Path,
) -> None:
    """Others guess renames, wrongly, or lose them over several releases."""
    write_overlay(tmp_path, "fusions/one", {MLP: (BASE, EDITED)})
    renamed = "megatron/core/layers/mlp.py"
    more = BASE + b"\n\ndef more(x):\n    return x\n"
    unlike = text("""
        class Table:
            rows = ()


        def scale(x):
            return Table()
    """)
    for name, data, found in (("like", more, "moved"), ("unlike", unlike, "dropped gone")):
        folder = tmp_path / name
        write_overlay(folder, "fusions/one", {MLP: (BASE, EDITED)})
        trees = {TAGS[0]: make_tree({MLP: BASE}), TAGS[1]: make_tree({renamed: data})}
        ported = run_port(make_job(folder, trees))
        assert ported.patches[0].outcome in found.split()
        assert (renamed in notes(ported)) == (name == "like")
        assert ("% alike" in notes(ported)) == (name == "like")


def test_a_port_of_one_overlay_leaves_the_files_of_all_others_alone(tmp_path: Path) -> None:
    """Exporting one patch deleted the others."""
    made = Set(tmp_path, {MLP: BASE}, {MLP: BASE.replace(b"    y = x * 2\n", b"    y = 2 * x\n")})
    write_overlay(made.overlays, "fusions/one", {MLP: (BASE, EDITED)})
    shifted = BASE.replace(b"    return z\n", b"    z = z + 0\n    return z\n")
    write_overlay(made.overlays, "fusions/two", {MLP: (BASE, shifted)})
    before = made.read()
    assert made.start(ids=("fusions/one",)).exit_code == 0
    after = made.read()
    assert {path for path in after if before.get(path) != after[path]} == {
        f"fusions/one/patches/{TAGS[1]}/megatron.core.mlp.patch"
    }
    assert set(before) <= set(after)
    assert list(parse_patch(made.patch("fusions/one", TAGS[1]), name="p").base_blobs) == [TAGS[1]]


def test_a_function_that_moved_to_another_file_takes_its_edit_along(tmp_path: Path) -> None:
    rest = BASE.replace(b"def scale", b"def widen") + b"\n\ndef keep(x):\n    return x\n"
    before, after = rest + b"\n\n" + BASE, rest + b"\n\n" + EDITED
    write_overlay(tmp_path, "fusions/one", {MLP: (before, after)})
    new = make_tree({MLP: rest, "megatron/core/scales.py": BASE})
    ported = run_port(make_job(tmp_path, {TAGS[0]: make_tree({MLP: before}), TAGS[1]: new}))
    assert ported.patches[-1].target == "megatron/core/scales.py"
    assert HOOK in ported.patches[-1].after
    assert "it moved to megatron/core/scales.py" in notes(ported)
