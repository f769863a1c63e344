"""Planning: closure, order, refusals in one sentence, parts, and the build digest."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mindspeed_overlay.errors import DefinitionError
from mindspeed_overlay.overlay import OverlaySet
from mindspeed_overlay.plan import Plan, Selection, make_plan
from unit.overlay_sets import load, make_pins, write_overlay, write_series

PINS = make_pins()


def patch(target: str) -> str:
    return f"Subject: s\n\n--- a/{target}\n+++ b/{target}\n@@ -1 +1 @@ <module>\n-a\n+b\n"


@pytest.fixture
def overlays(tmp_path: Path) -> OverlaySet:
    write_series(tmp_path, "base/a", "base/b", "moe/c", "moe/d", "late/e")
    write_overlay(tmp_path, "base/a", files__mindspeed__a="a")
    write_overlay(tmp_path, "base/b", 'requires = ["base/a"]\n', files__mindspeed__b="b")
    write_overlay(tmp_path, "moe/c", 'requires = ["base/b"]\nlevel = 1\n')
    write_overlay(
        tmp_path,
        "moe/d",
        'conflicts = ["moe/c"]\nlevel = 2\n',
        **{
            "patches__core_v1__megatron.core.x.patch": patch("megatron/core/x.py"),
            "patches__core_v1__megatron.training.y.patch": patch("megatron/training/y.py"),
            "patches__core_v1__megatron.legacy.z.patch": patch("megatron/legacy/z.py"),
        },
    )
    write_overlay(tmp_path, "late/e", 'releases = ">=core_v3"\n')
    return load(tmp_path)


def plan(overlays: OverlaySet, tag: str = "core_v2", tree: str = "core", **selection: Any) -> Plan:
    chosen = Selection(**selection)
    return make_plan(overlays, PINS, PINS.get(tag), selection=chosen, tree=tree)


def ids(result: Plan) -> list[str]:
    return [o.id for o in result.overlays]


def test_a_feature_brings_what_it_requires_in_series_order(overlays: OverlaySet) -> None:
    assert ids(plan(overlays, features=("moe/c",))) == ["base/a", "base/b", "moe/c"]


def test_a_level_takes_all_overlays_up_to_it(overlays: OverlaySet) -> None:
    assert ids(plan(overlays, level=0)) == ["base/a", "base/b"]
    assert ids(plan(overlays, level=1)) == ["base/a", "base/b", "moe/c"]


def test_all_leaves_out_what_does_not_serve_the_release_and_says_so(overlays: OverlaySet) -> None:
    result = plan(overlays, without=("moe/c",))
    assert ids(result) == ["base/a", "base/b", "moe/d"]
    assert result.left_out == ("late/e",)
    assert ids(plan(overlays, "core_v3", without=("moe/c",)))[-1] == "late/e"


@pytest.mark.parametrize(
    ("selection", "sentence"),
    [
        ({}, "moe/d: conflicts with moe/c, and both are selected"),
        (
            {"features": ("moe/c",), "without": ("base/a",)},
            "base/b: requires base/a, which --without excludes",
        ),
        ({"features": ("late/e",)}, "late/e: serves >=core_v3, not core_v2"),
        ({"features": ("moe/c",), "without": ("moe/c",)}, "moe/c: is asked for and excluded"),
    ],
)
def test_an_impossible_selection_is_explained_in_one_sentence(
    overlays: OverlaySet, selection: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(DefinitionError) as caught:
        plan(overlays, **selection)
    assert [sentence in str(p) for p in caught.value.problems] == [True]


def test_patches_of_packages_the_tree_lacks_are_skipped_and_listed(overlays: OverlaySet) -> None:
    def targets(tag: str, tree: str) -> tuple[list[str], list[str]]:
        result = plan(overlays, tag, tree, features=("moe/d",))
        return [p.target for p in result.patches], [p.target for p in result.skipped]

    core, training, legacy = (f"megatron/{p}.py" for p in ("core/x", "training/y", "legacy/z"))
    assert targets("core_v2", "core") == ([core], [legacy, training])
    assert targets("core_v3", "core") == ([core, training], [legacy])
    assert targets("core_v2", "full") == ([core, legacy, training], [])


def test_two_overlays_may_not_bring_one_file(tmp_path: Path) -> None:
    write_series(tmp_path, "base/a", "base/b")
    write_overlay(tmp_path, "base/a", files__mindspeed__x="1")
    write_overlay(tmp_path, "base/b", files__mindspeed__x="2")
    with pytest.raises(
        DefinitionError, match=r"base/b: brings mindspeed/x, which base/a brings too"
    ):
        plan(load(tmp_path))


def test_the_digest_depends_on_what_decides_files_and_on_nothing_else(overlays: OverlaySet) -> None:
    base = plan(overlays, features=("moe/d",))
    digest = base.build_digest("5" * 64)
    assert plan(overlays, features=("moe/d",)).build_digest("5" * 64) == digest
    documented = replace(
        base,
        revision=9,
        overlays=tuple(
            replace(o, summary="other", folder=Path("/elsewhere")) for o in base.overlays
        ),
        patches=tuple(replace(p, data=b"Last-Update: x\n" + p.data) for p in base.patches),
    )
    assert documented.build_digest("5" * 64) == digest
    others = [
        base.build_digest("6" * 64),
        replace(base, tree="full").build_digest("5" * 64),
        replace(base, release=PINS.get("core_v1")).build_digest("5" * 64),
        replace(
            base, patches=tuple(replace(p, data=p.data + b" x\n") for p in base.patches)
        ).build_digest("5" * 64),
        plan(overlays, features=("moe/d", "base/a")).build_digest("5" * 64),
    ]
    assert len({digest, *others}) == 6
