"""Drift: what an overlay uses, what became of it, and that a change is asked for once."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from mindspeed_overlay.drift.between import Between, compare_releases
from mindspeed_overlay.drift.changes import compare_uses, diff_change
from mindspeed_overlay.drift.reviewed import Reviewed, read_reviewed, write_reviewed
from mindspeed_overlay.drift.survey import Survey, find_unreviewed, report_unreviewed
from mindspeed_overlay.drift.symbols import PRESENT, Symbols
from mindspeed_overlay.drift.uses import How, Use
from mindspeed_overlay.errors import DefinitionError
from mindspeed_overlay.fingerprint import Fingerprint
from unit.overlay_sets import TAGS, write_overlay
from unit.upkeep_sets import MLP, RELEASES, UTILS, V1, encode, survey, write_set


@pytest.fixture
def made(tmp_path: Path) -> Survey:
    return survey(write_set(tmp_path))


def look(made: Survey, tag: str = "core_v1") -> dict[str, How]:
    looked = made.look(made.overlays.get("base/one"), made.pins.get(tag))
    assert looked.problems == ()
    return {use.symbol: use.how for use in looked.uses}


def kinds(between: Between) -> dict[str, str]:
    return {change.use.symbol: change.kind for change in between.changes}


def test_an_overlay_uses_what_it_edits_extends_calls_and_names(made: Survey) -> None:
    assert look(made) == {
        "megatron.core.mlp": "edits",  # the import that it adds
        "megatron.core.mlp:MLP.forward": "edits",
        "megatron.core.utils": "names",
        "megatron.core.utils:Group": "extends",
        "megatron.core.utils:divide": "calls",
        "megatron.core.utils:get_rank": "names",
    }


def test_names_in_strings_and_local_imports_count(tmp_path: Path) -> None:
    root = write_set(tmp_path)
    text = (
        'import sys\nM = sys.modules["megatron.core.mlp"]\nN = "megatron.core.mlp.MLP.forward"\n'
        "def f():\n    from megatron.core import mlp as m\n    return m.MLP\n"
    )
    (root / "base/one/files/mindspeed/core/more.py").write_text(text)
    found = look(survey(root))
    assert found["megatron.core.mlp:MLP"] == "names"


def test_a_change_of_looks_alone_is_the_same(made: Survey) -> None:
    between = compare_releases(
        made, made.overlays.get("base/one"), since="core_v1", to="core_v2", accept=False
    )
    assert set(kinds(between).values()) == {"same"}
    assert between.unread == frozenset()


def test_every_kind_of_change_is_told_though_the_patch_applies(made: Survey) -> None:
    between = compare_releases(
        made, made.overlays.get("base/one"), since="core_v2", to="core_v3", accept=False
    )
    assert between.problems == ()
    assert kinds(between) == {
        "megatron.core.mlp": "same",
        "megatron.core.mlp:MLP.forward": "body changed",
        "megatron.core.utils": "same",
        "megatron.core.utils:Group": "same",
        "megatron.core.utils:divide": "signature changed",
        "megatron.core.utils:get_rank": "moved",
    }
    moved = next(c for c in between.changes if c.kind == "moved")
    assert [s.symbol for s in moved.successors] == ["megatron.core.ranks:get_rank"]
    assert moved.successors[0].similarity == 1.0


def test_the_upstream_diff_is_that_of_the_symbol_alone(made: Survey) -> None:
    old, new = made.symbols("core_v2"), made.symbols("core_v3")
    use = Use("megatron.core.mlp", "MLP.forward", "edits")
    change = compare_uses([use], old, new)[0]
    text = diff_change(change, old, new, tags=("core_v2", "core_v3"))
    assert "-        x = x + 0\n" in text
    assert "+        x = x + 1\n" in text
    assert "divide" not in text


def changed(source: str, old: str, new: str, use: Use) -> str:
    before = {**V1, "megatron/core/utils.py": source}
    after = {**V1, "megatron/core/utils.py": source.replace(old, new)}
    changes = compare_uses([use], Symbols(encode(before)), Symbols(encode(after)))
    return changes[0].kind


@pytest.mark.parametrize(
    ("how", "old", "new", "kind"),
    [
        ("names", "len(self.ranks)", "0", "same"),
        ("calls", "len(self.ranks)", "0", "same"),
        ("extends", "len(self.ranks)", "0", "body changed"),
        ("names", "__init__(self, ranks)", "__init__(self, r)", "same"),
        ("calls", "__init__(self, ranks)", "__init__(self, r)", "signature changed"),
        ("names", "class Group", "class Other", "gone"),
    ],
)
def test_a_class_is_looked_at_as_closely_as_it_is_used(
    how: How, old: str, new: str, kind: str
) -> None:
    assert changed(UTILS, old, new, Use("megatron.core.utils", "Group", how)) == kind


def test_a_variable_has_to_be_there_and_no_more() -> None:
    use = Use("megatron.core.utils", "SCALE", "names")
    assert changed(UTILS, "SCALE = 2", "SCALE = 3", use) == "same"
    assert changed(UTILS, "SCALE = 2", "OTHER = 2", use) == "gone"


def test_a_symbol_that_its_module_imports_on_is_moved_not_gone() -> None:
    body = "def divide(a, b):\n    return a // b + 0\n"
    after = {
        **V1,
        "megatron/core/utils.py": "from megatron.core.maths import divide\n",
        "megatron/core/maths.py": body,
    }
    use = Use("megatron.core.utils", "divide", "calls")
    change = compare_uses([use], Symbols(encode(V1)), Symbols(encode(after)))[0]
    assert (change.kind, change.successors[0].symbol) == ("moved", "megatron.core.maths:divide")
    assert change.successors[0].similarity < 1


def test_a_namesake_with_other_code_is_shown_and_not_decided() -> None:
    other = "def divide(a, b):\n    # checked\n    assert b\n    return a // b\n"
    after = {**V1, "megatron/core/utils.py": "", "megatron/core/maths.py": other}
    use = Use("megatron.core.utils", "divide", "calls")
    change = compare_uses([use], Symbols(encode(V1)), Symbols(encode(after)))[0]
    assert change.kind == "gone"
    assert [(s.symbol, s.similarity < 1) for s in change.successors] == [
        ("megatron.core.maths:divide", True)
    ]


def test_a_renamed_module_is_found_by_its_content() -> None:
    after = {k: v for k, v in V1.items() if k != "megatron/core/utils.py"}
    after["megatron/core/common/tools.py"] = UTILS
    use = Use("megatron.core.utils", "", "names")
    change = compare_uses([use], Symbols(encode(V1)), Symbols(encode(after)))[0]
    assert (change.kind, change.successors[0].symbol) == ("moved", "megatron.core.common.tools")


def unreviewed(made: Survey, reviewed: Reviewed | None, tag: str) -> dict[str, str]:
    uses = made.look(made.overlays.get("base/one"), made.pins.get(tag)).uses
    found = find_unreviewed(uses, made.symbols(tag), reviewed, tag=tag, order=TAGS)
    return {item.use.symbol: f"{item.what} since {item.since}" for item in found}


def accept(made: Survey, reviewed: Reviewed, tag: str) -> Reviewed:
    uses = made.look(made.overlays.get("base/one"), made.pins.get(tag)).uses
    states = [(use.symbol, made.symbols(tag).state_of(use)) for use in uses]
    return reviewed.with_states(tag, [(s, state) for s, state in states if state], TAGS)


def test_a_change_is_asked_for_once(made: Survey) -> None:
    reviewed = accept(made, Reviewed({}), "core_v1")
    assert unreviewed(made, reviewed, "core_v1") == {}
    assert unreviewed(made, reviewed, "core_v2") == {}  # looks only
    assert unreviewed(made, reviewed, "core_v3") == {
        "megatron.core.mlp:MLP.forward": "body changed since core_v1",
        "megatron.core.utils:divide": "signature changed since core_v1",
    }
    assert unreviewed(made, accept(made, reviewed, "core_v3"), "core_v3") == {}


def test_without_a_record_everything_is_to_review_and_told_in_one_problem(made: Survey) -> None:
    uses = made.look(made.overlays.get("base/one"), made.pins.get("core_v1")).uses
    found = find_unreviewed(uses, made.symbols("core_v1"), None, tag="core_v1", order=TAGS)
    problems = report_unreviewed(found, overlay="base/one", release="core_v1", recorded=False)
    assert [p.code for p in problems] == ["E611"]
    recorded = report_unreviewed(found, overlay="base/one", release="core_v1", recorded=True)
    assert {p.code for p in recorded} == {"E610"}
    assert len(recorded) == len(uses)


def test_accepting_writes_a_canonical_file_that_reads_back(made: Survey, tmp_path: Path) -> None:
    overlay = made.overlays.get("base/one")
    compare_releases(made, overlay, since="core_v2", to="core_v3", accept=True)
    reviewed = read_reviewed(overlay.folder)
    assert reviewed is not None
    data = (overlay.folder / "reviewed.toml").read_bytes()
    assert reviewed.to_bytes() == data
    assert not write_reviewed(overlay.folder, reviewed)
    again = compare_releases(made, overlay, since="core_v2", to="core_v3", accept=False)
    # What is used and gone is no state that could be accepted.
    assert again.unread == {"megatron.core.utils:get_rank"}


def test_a_closer_look_than_the_reviewed_one_is_asked_for() -> None:
    state = Fingerprint("aa", "bb")
    reviewed = Reviewed({"m:f": (("core_v1", PRESENT),)})
    assert not reviewed.covers("m:f", state)
    assert Reviewed({"m:f": (("core_v1", state),)}).covers("m:f", PRESENT)
    assert Reviewed({"m:f": (("core_v1", state),)}).covers("m:f", replace(state, body="-"))


def test_a_damaged_record_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "reviewed.toml").write_text('[symbols]\n"m:f" = ["core_v1 zz"]\n')
    with pytest.raises(DefinitionError, match=r"reviewed\.toml"):
        read_reviewed(tmp_path)


def test_a_change_that_the_own_form_no_longer_meets_needs_no_review(tmp_path: Path) -> None:
    releases: dict[str, Mapping[str, str]] = {
        **RELEASES,
        "core_v3": V1 | {"megatron/core/mlp.py": "X = 1\n"},
    }
    write_set(tmp_path)
    write_overlay(tmp_path / "x", "base/none")  # a newer, empty set serves core_v3
    (tmp_path / "base/one/patches/core_v3").mkdir()
    made = survey(tmp_path, releases)
    between = compare_releases(
        made, made.overlays.get("base/one"), since="core_v2", to="core_v3", accept=False
    )
    assert kinds(between)["megatron.core.mlp:MLP.forward"] == "gone"
    assert "megatron.core.mlp:MLP.forward" not in between.unread


def test_an_overlay_that_does_not_apply_says_so_and_is_still_compared(tmp_path: Path) -> None:
    broken = {**V1, "megatron/core/mlp.py": MLP.replace("return y", "return z")}
    made = survey(write_set(tmp_path), {**RELEASES, "core_v3": broken})
    between = compare_releases(
        made, made.overlays.get("base/one"), since="core_v2", to="core_v3", accept=True
    )
    assert [p.code for p in between.problems] == ["E502"]
    assert kinds(between)["megatron.core.mlp:MLP.forward"] == "body changed"
    assert between.unread == {"megatron.core.mlp:MLP.forward"}
    assert read_reviewed(made.overlays.get("base/one").folder) is None
