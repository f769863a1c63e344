"""Hooks of overlays: what is accepted, every fault named, and the table that a build gets."""

from pathlib import Path
from typing import Any

import pytest

from mindspeed_overlay.errors import DefinitionError
from mindspeed_overlay.generate import generate_files
from mindspeed_overlay.hook import HOOK_TABLE_PATH, POINTS
from mindspeed_overlay.plan import Selection, make_plan
from unit.overlay_sets import TAGS, load, make_pins, write_overlay, write_series

HOOK = """
[[hook]]
point = "{point}"
function = "mindspeed.core.x:{name}"
when = ["use_x", "kind=a|b"]
"""


def write_set(root: Path) -> None:
    write_series(root, "base/hooks", "a/second", "a/first", "a/left-out")
    write_overlay(root, "base/hooks")
    for name in ("second", "first", "left-out"):
        hook = HOOK.format(point="attention", name=name.replace("-", "_"))
        write_overlay(root, f"a/{name}", f'requires = ["base/hooks"]\n{hook}')


def test_the_table_lists_chosen_overlays_in_series_order(tmp_path: Path) -> None:
    write_set(tmp_path)
    overlays = load(tmp_path).overlays
    chosen = [overlays[0], overlays[2], overlays[1]]
    files = generate_files(chosen, known=overlays, tag="core_v2", order=TAGS)
    table: dict[str, Any] = {}
    exec(files[HOOK_TABLE_PATH], table)
    conditions = (("use_x", ()), ("kind", ("a", "b")))
    assert table["HOOKS"] == (
        ("attention", "a/second", "mindspeed.core.x:second", conditions),
        ("attention", "a/first", "mindspeed.core.x:first", conditions),
    )


def test_the_table_belongs_to_the_overlay_that_reads_it(tmp_path: Path) -> None:
    write_set(tmp_path)
    pins = make_pins()
    for features, owners in ((("base/hooks",), ["base/hooks"]), (("a/first",), ["base/hooks"])):
        selection = Selection(features=features)
        plan = make_plan(load(tmp_path), pins, pins.get("core_v2"), selection=selection)
        assert [o for o, path, _ in plan.files if path == HOOK_TABLE_PATH] == owners


def test_a_build_without_hooks_has_no_table(tmp_path: Path) -> None:
    write_series(tmp_path, "base/a")
    write_overlay(tmp_path, "base/a")
    overlays = load(tmp_path).overlays
    assert generate_files(overlays, known=overlays, tag="core_v2", order=TAGS) == {}


@pytest.mark.parametrize(
    ("hook", "message"),
    [
        (HOOK.format(point="attention", name="f") + "extra = 1\n", "unknown key 'extra'"),
        ('[[hook]]\npoint = "attention"\n', "function is missing"),
        (HOOK.format(point="somewhere", name="f"), f"point must be one of {', '.join(POINTS)}"),
        (HOOK.format(point="batch", name="f").replace("mindspeed.core.x:f", "x.f"), "must look"),
        (HOOK.format(point="batch", name="f").replace('["use_x", "kind=a|b"]', "[]"), "at least"),
        (HOOK.format(point="batch", name="f").replace('"use_x"', '"Use X"'), "cannot read"),
    ],
)
def test_a_wrong_hook_is_named(tmp_path: Path, hook: str, message: str) -> None:
    write_series(tmp_path, "base/hooks", "a/b")
    write_overlay(tmp_path, "base/hooks")
    write_overlay(tmp_path, "a/b", f'requires = ["base/hooks"]\n{hook}')
    with pytest.raises(DefinitionError) as caught:
        load(tmp_path)
    assert message in " ".join(problem.message for problem in caught.value.problems)


def test_hooks_need_the_overlay_that_calls_them(tmp_path: Path) -> None:
    write_series(tmp_path, "base/hooks", "a/b")
    write_overlay(tmp_path, "base/hooks")
    write_overlay(tmp_path, "a/b", HOOK.format(point="batch", name="f"))
    with pytest.raises(DefinitionError) as caught:
        load(tmp_path)
    assert "has hooks and does not require base/hooks" in str(caught.value)
