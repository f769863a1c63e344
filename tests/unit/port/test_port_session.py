"""A port on disk: written when all is well, stopped at conflicts, gone on with after any kill."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from mindspeed_overlay.cli import Workspace
from mindspeed_overlay.data import default_pins
from mindspeed_overlay.errors import DefinitionError, UsageError
from mindspeed_overlay.patch import parse_patch
from mindspeed_overlay.port import state as state_module
from mindspeed_overlay.port.conflicts import has_markers
from mindspeed_overlay.port.session import Outcome, abort_port, continue_port, start_port
from mindspeed_overlay.port.state import Request, Store
from mindspeed_overlay.source.transport import run_git
from unit.port.port_sets import CORE, MLP, TAGS, text, write_overlay

OTHER = "megatron/core/other.py"
BASE = text("""
    import os


    def scale(x):
        y = x * 2
        y = y + 1
        return y


    def shift(x):
        z = x - 1
        return z
""")
HOOK = b"    from mindspeed.fused import fused\n\n    y = fused(y)\n"
EDITED = BASE.replace(b"    y = y + 1\n", HOOK + b"    y = y + 1\n")
CLASH = BASE.replace(b"    y = x * 2\n    y = y + 1\n", b"    y = x * 4\n    y = y + 3\n")


def build_upstream(folder: Path, *states: dict[str, bytes]) -> Path:
    """A git repository with a tag for each state of some files."""
    folder.mkdir()
    run_git(folder, ["init", "--initial-branch=main", "--template="])
    identity = ["-c", "user.name=Upstream", "-c", "user.email=up@localhost"]
    for tag, files in zip(TAGS, states, strict=False):
        for place in folder.rglob("*.py"):
            place.unlink()
        for path, data in ({CORE: b"", OTHER: b"x = 1\n"} | files).items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)
        run_git(folder, ["add", "-A"])
        run_git(folder, [*identity, "commit", "-q", "--allow-empty", "-m", f"release {tag}"])
        run_git(folder, ["tag", tag])
    return folder


class Set:
    """An overlay set, an upstream repository and a work folder."""

    def __init__(self, root: Path, *states: dict[str, bytes]) -> None:
        self.overlays = root / "overlays"
        self.overlays.mkdir()
        self.upstream = build_upstream(root / "upstream", *states)
        self.work = root / "work"

    @property
    def workspace(self) -> Workspace:
        return Workspace(self.overlays, default_pins(), -1)

    def request(self, **more: object) -> Request:
        spec = f"git:{self.upstream}"
        values = {"first": TAGS[0], "last": TAGS[1], "spec": spec, "offline": True, **more}
        return Request(**values)  # type: ignore[arg-type]

    def start(self, *, dry_run: bool = False, **more: object) -> Outcome:
        return start_port(self.workspace, self.request(**more), self.work, dry_run=dry_run)

    def go_on(self, *skip: str) -> Outcome:
        return continue_port(self.workspace, self.work, skip=skip)

    def read(self) -> dict[str, bytes]:
        places = (p for p in sorted(self.overlays.rglob("*")) if p.is_file())
        return {p.relative_to(self.overlays).as_posix(): p.read_bytes() for p in places}

    def patch(self, name: str, tag: str) -> bytes:
        return (self.overlays / name / "patches" / tag / "megatron.core.mlp.patch").read_bytes()


@pytest.fixture
def clean(tmp_path: Path) -> Set:
    """A port without conflicts that needs a new form."""
    new = BASE.replace(b"    y = x * 2\n", b"    y = 2 * x\n")
    made = Set(tmp_path, {MLP: BASE}, {MLP: new})
    write_overlay(made.overlays, "fusions/one", {MLP: (BASE, EDITED)})
    return made


@pytest.fixture
def clashing(tmp_path: Path) -> Set:
    """Two overlays, of which the first conflicts."""
    return make_clashing(tmp_path)


def make_clashing(folder: Path) -> Set:
    """The set of `clashing`."""
    made = Set(folder, {MLP: BASE}, {MLP: CLASH})
    write_overlay(made.overlays, "fusions/one", {MLP: (BASE, EDITED)})
    shifted = BASE.replace(b"    return z\n", b"    z = z + 0\n    return z\n")
    write_overlay(made.overlays, "fusions/two", {MLP: (BASE, shifted)})
    return made


def solve(made: Set) -> None:
    """Do what a person does: keep upstream's lines and the hook."""
    place = made.work / "tree" / MLP
    assert has_markers(place.read_bytes())
    place.write_bytes(CLASH.replace(b"    y = y + 3\n", HOOK + b"    y = y + 3\n"))


def test_a_clean_port_writes_the_whole_set_of_the_new_release(clean: Set) -> None:
    before = clean.read()
    outcome = clean.start()
    assert outcome.exit_code == 0
    after = clean.read()
    assert {path: after[path] for path in before} == before
    patch = parse_patch(clean.patch("fusions/one", TAGS[1]), name="p")
    assert list(patch.base_blobs) == [TAGS[1]]
    assert patch.reason == "Because."
    assert not clean.work.exists()


def test_a_second_port_is_a_no_op(clean: Set) -> None:
    clean.start()
    before = clean.read()
    outcome = clean.start()
    assert (outcome.exit_code, outcome.written) == (0, ())
    assert clean.read() == before


def test_a_patch_that_still_applies_gets_one_more_base_blob_and_no_new_folder(
    tmp_path: Path,
) -> None:
    made = Set(tmp_path, {MLP: BASE}, {MLP: b"# above\n" + BASE})
    write_overlay(made.overlays, "fusions/one", {MLP: (BASE, EDITED)})
    before = made.patch("fusions/one", TAGS[0])
    made.start()
    after = made.patch("fusions/one", TAGS[0])
    assert list(parse_patch(after, name="p").base_blobs) == [TAGS[0], TAGS[1]]
    assert after.partition(b"--- ")[2] == before.partition(b"--- ")[2]
    assert not (made.overlays / "fusions/one/patches" / TAGS[1]).exists()


def test_a_dry_run_writes_nothing(clashing: Set) -> None:
    before = clashing.read()
    assert clashing.start(dry_run=True).exit_code == 5
    assert clashing.read() == before
    assert not clashing.work.exists()


def test_a_conflict_writes_nothing_and_is_laid_out_as_a_git_merge(clashing: Set) -> None:
    before = clashing.read()
    outcome = clashing.start()
    assert outcome.exit_code == 5
    assert clashing.read() == before
    tree = clashing.work / "tree"
    status = run_git(tree, ["status", "--porcelain=v1"]).decode()
    assert f"UU {MLP}" in status
    stages = run_git(tree, ["ls-files", "--unmerged"]).decode().splitlines()
    assert [line.split()[2] for line in stages] == ["1", "2", "3"]
    assert run_git(tree, ["cat-file", "blob", f":1:{MLP}"]) == BASE.rstrip(b"\n")
    assert (tree / ".git" / "MERGE_HEAD").is_file()
    assert run_git(tree, ["cat-file", "blob", f":2:{MLP}"]) == CLASH.rstrip(b"\n")
    assert run_git(tree, ["cat-file", "blob", f":3:{MLP}"]) == EDITED.rstrip(b"\n")


def test_git_itself_can_finish_the_merge(clashing: Set) -> None:
    clashing.start()
    solve(clashing)
    tree = clashing.work / "tree"
    run_git(tree, ["add", MLP])
    identity = ["-c", "user.name=A", "-c", "user.email=a@localhost"]
    run_git(tree, [*identity, "commit", "-q", "--no-edit"])
    parents = run_git(tree, ["rev-list", "--parents", "-1", "HEAD"]).decode().split()
    assert len(parents) == 3
    assert clashing.go_on().exit_code == 0


def test_continue_takes_the_solution_and_writes_every_overlay(clashing: Set) -> None:
    clashing.start()
    solve(clashing)
    outcome = clashing.go_on()
    assert outcome.exit_code == 0
    assert HOOK.splitlines()[0] in clashing.patch("fusions/one", TAGS[1])
    assert outcome.ported.overlays[0].outcome == "resolved"
    assert not clashing.work.exists()


def test_continue_without_a_solution_stays_where_it_is(clashing: Set) -> None:
    before = clashing.read()
    clashing.start()
    assert clashing.go_on().exit_code == 5
    assert clashing.read() == before


def test_a_solution_that_breaks_a_name_is_refused(clashing: Set) -> None:
    clashing.start()
    place = clashing.work / "tree" / MLP
    place.write_bytes(CLASH.replace(b"    y = y + 3\n", b"    y = nowhere(y)\n"))
    outcome = clashing.go_on()
    assert outcome.exit_code == 5
    notes = [p.note for patch in outcome.ported.patches for p in patch.pieces]
    assert any("E602" in note and "nowhere" in note for note in notes)


def test_a_solution_that_the_gate_refused_can_be_mended(clashing: Set) -> None:
    clashing.start()
    place = clashing.work / "tree" / MLP
    for name in (b"nowhere", b"not_here"):
        place.write_bytes(CLASH.replace(b"    y = y + 3\n", b"    y = %s(y)\n" % name))
        assert clashing.go_on().exit_code == 5
    place.write_bytes(CLASH.replace(b"    y = y + 3\n", HOOK + b"    y = y + 3\n"))
    assert clashing.go_on().exit_code == 0
    assert HOOK.splitlines()[0] in clashing.patch("fusions/one", TAGS[1])


def test_a_merge_that_the_gate_refused_is_solved_like_any_conflict(tmp_path: Path) -> None:
    """No text clashes: upstream renamed what the overlay's new statement calls."""
    helper = b"\n\ndef helper(y):\n    return y\n"
    edited = EDITED.replace(HOOK, b"    y = helper(y)\n")
    made = Set(tmp_path, {MLP: BASE + helper}, {MLP: BASE + helper.replace(b"helper", b"assist")})
    write_overlay(made.overlays, "fusions/one", {MLP: (BASE + helper, edited + helper)})
    assert made.start().exit_code == 5
    place = made.work / "tree" / MLP
    place.write_bytes(place.read_bytes().replace(b"y = helper(y)", b"y = assist(y)"))
    outcome = made.go_on()
    assert outcome.exit_code == 0
    assert outcome.ported.overlays[0].outcome == "resolved"
    assert b"+    y = assist(y)\n" in made.patch("fusions/one", TAGS[1])


def test_a_solution_is_not_used_for_an_upstream_that_moved_on(clashing: Set) -> None:
    """A replayed solution would take back what a branch of upstream got in between."""
    tree = clashing.upstream
    run_git(tree, ["checkout", "-q", "-b", "next"])
    clashing.start(last="next")
    solve(clashing)
    newer = CLASH.replace(b"    y = y + 3\n", b"    y = y + 4\n")
    (tree / MLP).write_bytes(newer)
    identity = ["-c", "user.name=Upstream", "-c", "user.email=up@localhost"]
    run_git(tree, [*identity, "commit", "-q", "-am", "newer"])
    outcome = clashing.go_on()
    assert outcome.exit_code == 5
    assert [p.outcome for p in outcome.ported.patches] == ["conflict", "exact"]
    place = clashing.work / "tree" / MLP
    assert b"y = y + 4" in place.read_bytes()
    place.write_bytes(newer.replace(b"    y = y + 4\n", HOOK + b"    y = y + 4\n"))
    assert clashing.go_on().exit_code == 0


def test_a_deleted_file_drops_its_patch(clashing: Set) -> None:
    clashing.start()
    (clashing.work / "tree" / MLP).unlink()
    outcome = clashing.go_on()
    assert outcome.exit_code == 0
    assert outcome.ported.overlays[0].forms() == {}
    folder = clashing.overlays / "fusions/one/patches" / TAGS[1]
    assert [p.name for p in folder.iterdir()] == ["ABSORBED"]


def test_skip_leaves_an_overlay_out_and_writes_the_others(clashing: Set) -> None:
    clashing.start()
    before = clashing.read()
    outcome = clashing.go_on("fusions/one")
    assert outcome.exit_code == 0
    assert [o.overlay for o in outcome.ported.overlays] == ["fusions/two"]
    changed = {path for path, data in clashing.read().items() if before.get(path) != data}
    assert changed
    assert all(path.startswith("fusions/two/") for path in changed)


def test_abort_leaves_no_trace(clashing: Set) -> None:
    before = clashing.read()
    clashing.start()
    abort_port(clashing.work)
    assert not clashing.work.exists()
    assert clashing.read() == before


def test_a_second_port_beside_an_unfinished_one_is_refused(clashing: Set) -> None:
    clashing.start()
    with pytest.raises(UsageError, match="E223"):
        clashing.start()


def test_there_is_nothing_to_continue_or_abort_at_first(clashing: Set) -> None:
    with pytest.raises(UsageError, match="E222"):
        clashing.go_on()
    with pytest.raises(UsageError, match="E222"):
        abort_port(clashing.work)


def test_overlays_changed_in_between_are_noticed(clashing: Set) -> None:
    clashing.start()
    place = clashing.overlays / "fusions/one/patches" / TAGS[0] / "megatron.core.mlp.patch"
    place.write_bytes(place.read_bytes().replace(b"fused(y)", b"fused(y) "))
    with pytest.raises(DefinitionError, match="E534"):
        clashing.go_on()


def test_a_damaged_state_says_how_to_get_out(clashing: Set) -> None:
    clashing.start()
    (clashing.work / "port.json").write_text("{")
    with pytest.raises(DefinitionError, match="--abort"):
        clashing.go_on()
    abort_port(clashing.work)


class KilledError(BaseException):
    """Stands for a kill: nothing catches it."""


class Killer:
    """Ends a run at its n-th step of writing; each step is a rename or the making of a folder."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = -1
        for name in ("replace", "rename", "mkdir"):
            monkeypatch.setattr(Path, name, self._wrap(getattr(Path, name)))

    def _wrap(self, real: object) -> object:
        def step(path: Path, *args: object, **kwargs: object) -> object:
            if self.left == 0:
                raise KilledError
            self.left -= 1
            return real(path, *args, **kwargs)  # type: ignore[operator]

        return step


def test_a_port_killed_at_any_step_is_gone_on_with_to_the_same_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = BASE.replace(b"    y = x * 2\n", b"    y = 2 * x\n")
    made = Set(tmp_path, {MLP: BASE}, {MLP: new})
    write_overlay(made.overlays, "fusions/one", {MLP: (BASE, EDITED)})
    before = tmp_path / "before"
    shutil.copytree(made.overlays, before)
    made.start()
    wanted = made.read()
    killer = Killer(monkeypatch)
    killed = 0
    for steps in range(100):
        killer.left = -1
        shutil.rmtree(made.overlays)
        shutil.copytree(before, made.overlays)
        killer.left = steps
        try:
            made.start()
            break
        except KilledError:
            killer.left = -1
        killed += 1
        if Store(made.work).exists:
            made.go_on()
        else:
            made.start()
        assert made.read() == wanted, steps
    assert made.read() == wanted
    assert killed > 5


def test_the_report_for_machines_names_what_is_open(clashing: Set) -> None:
    from mindspeed_overlay.port.report import to_json

    report = json.loads(json.dumps(to_json(clashing.start().ported)))
    assert not report["ok"]
    (problem, *_) = report["problems"]
    assert problem["code"] == "E530"
    assert problem["overlay"] == "fusions/one"
    assert problem["symbol"] == "scale"
    hunks = report["overlays"][0]["patches"][0]["hunks"]
    assert "release core_v2.0.0" in json.dumps([hunk.get("commits") for hunk in hunks])


def test_a_port_sees_no_configuration_of_the_user(
    clashing: Set, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = tmp_path / "gitconfig"
    config.write_text(
        "[core]\n autocrlf = true\n[commit]\n gpgsign = true\n[diff]\n noprefix = true\n"
        "[rerere]\n enabled = true\n[merge]\n conflictStyle = merge\n"
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert clashing.start().exit_code == 5
    solve(clashing)
    assert clashing.go_on().exit_code == 0


def test_the_work_folder_hides_from_the_repository_around_it(clashing: Set) -> None:
    run_git(clashing.work.parent, ["init", "--template="])
    clashing.start()
    done = subprocess.run(
        ["git", "status", "--porcelain", "--", "work"],
        cwd=clashing.work.parent,
        capture_output=True,
        check=True,
    )
    assert done.stdout == b""


def test_the_format_of_the_state_is_checked(clashing: Set) -> None:
    clashing.start()
    place = clashing.work / "port.json"
    table = json.loads(place.read_text())
    assert table["format"] == state_module.FORMAT
    table["format"] += 1
    place.write_text(json.dumps(table))
    with pytest.raises(DefinitionError, match="another format"):
        clashing.go_on()


def test_an_overlay_that_does_not_fit_its_own_release_holds_up_no_other(tmp_path: Path) -> None:
    made = Set(tmp_path, {MLP: BASE}, {MLP: BASE.replace(b"    y = x * 2\n", b"    y = 2 * x\n")})
    write_overlay(made.overlays, "fusions/one", {MLP: (BASE, EDITED)})
    wrong = BASE.replace(b"z = x - 1", b"z = x - 9")
    negated = wrong.replace(b"    return z\n", b"    return -z\n")
    write_overlay(made.overlays, "fusions/two", {MLP: (wrong, negated)})
    outcome = made.start()
    found = {o.overlay: o.outcome for o in outcome.ported.overlays}
    assert found == {"fusions/one": "structural", "fusions/two": "blocked"}
    assert "does not fit core_v1.0.0, where it starts" in outcome.ported.patches[1].notes[0]
    assert not (made.work / "tree").exists()
    assert made.go_on("fusions/two").exit_code == 0
    assert b"+    y = fused(y)\n" in made.patch("fusions/one", TAGS[1])
