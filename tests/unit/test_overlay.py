"""Reading overlay sets: what is accepted, and every wrong definition named."""

from pathlib import Path

import pytest

from mindspeed_overlay.errors import DefinitionError
from unit.overlay_sets import TAGS, load, write_overlay, write_series

OPTION = """
[[option]]
flag = "--use-x"
field = "use_x"
config = "TransformerConfig"
type = "bool"
default = false
help = "x"
"""


def codes(root: Path) -> list[tuple[str, str]]:
    with pytest.raises(DefinitionError) as caught:
        load(root)
    return [(p.code, p.message) for p in caught.value.problems]


def test_a_set_is_read_in_series_order_with_its_revision(tmp_path: Path) -> None:
    write_series(tmp_path, "base/b", "base/a")
    write_overlay(tmp_path, "base/a", f'requires = ["base/b"]\nreleases = ">=core_v2"\n{OPTION}')
    write_overlay(tmp_path, "base/b", files__mindspeed__b="b = 1\n")
    found = load(tmp_path)
    assert [o.id for o in found.overlays] == ["base/b", "base/a"]
    assert found.revision == 3
    assert found.get("base/a").options[0].field == "use_x"
    assert found.get("base/b").files_for("core_v1", TAGS) == {"mindspeed/b": b"b = 1\n"}


@pytest.mark.parametrize(
    ("releases", "served"),
    [
        ("", TAGS),
        (">=core_v2", ("core_v2", "core_v3")),
        (">=core_v1, <core_v3", ("core_v1", "core_v2")),
        ("<=core_v1", ("core_v1",)),
        (">core_v1,<core_v3", ("core_v2",)),
        ("==core_v3", ("core_v3",)),
    ],
)
def test_bounds_are_read_in_pin_order(
    tmp_path: Path, releases: str, served: tuple[str, ...]
) -> None:
    write_series(tmp_path, "base/a")
    write_overlay(tmp_path, "base/a", f'releases = "{releases}"\n')
    overlay = load(tmp_path).get("base/a")
    assert tuple(tag for tag in TAGS if overlay.serves(tag, TAGS)) == served


def test_the_newest_patch_set_not_after_the_release_counts_whole(tmp_path: Path) -> None:
    write_series(tmp_path, "base/a")
    write_overlay(
        tmp_path,
        "base/a",
        **{
            "patches__core_v1__megatron.core.x.patch": "1",
            "patches__core_v3__megatron.core.y.patch": "3",
        },
    )
    overlay = load(tmp_path).get("base/a")
    assert overlay.patches_for("core_v2", TAGS) == {"megatron.core.x.patch": b"1"}
    assert overlay.patches_for("core_v3", TAGS) == {"megatron.core.y.patch": b"3"}
    assert overlay.patch_since("core_v2", TAGS) == "core_v1"


def test_files_at_a_release_replace_the_general_ones_from_there_on(tmp_path: Path) -> None:
    write_series(tmp_path, "base/a")
    write_overlay(
        tmp_path, "base/a", **{"files__mindspeed__a": "old", "files@core_v2__mindspeed__a": "new"}
    )
    overlay = load(tmp_path).get("base/a")
    assert overlay.files_for("core_v1", TAGS) == {"mindspeed/a": b"old"}
    assert overlay.files_for("core_v3", TAGS) == {"mindspeed/a": b"new"}


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("levle = 1\n", "unknown key 'levle'"),
        ("level = 7\n", "level must be 0, 1 or 2"),
        ('releases = "core_v1 and up"\n', "cannot read"),
        ('releases = ">=core_v9"\n', "not pinned"),
        ('requires = ["base/none"]\n', "requires base/none, which is not here"),
        ("summary = \n", "overlay.toml:"),
        (OPTION.replace("TransformerConfig", "Config"), "config must be one of"),
        (OPTION.replace("--use-x", "use_x"), "must look like --use-fused-swiglu"),
        (OPTION.replace("false", '"no"'), "default 'no' is no bool"),
        (OPTION.replace("help", "hlep"), "hlep"),
    ],
)
def test_a_wrong_definition_is_named(tmp_path: Path, toml: str, message: str) -> None:
    write_series(tmp_path, "base/a")
    write_overlay(tmp_path, "base/a", toml)
    assert any(message in text for _, text in codes(tmp_path)), codes(tmp_path)


def test_all_wrong_definitions_of_a_set_are_reported_together(tmp_path: Path) -> None:
    write_series(tmp_path, "base/a", "base/b", "base/gone")
    write_overlay(tmp_path, "base/a", "level = 9\n")
    write_overlay(tmp_path, "base/b", 'releases = "?"\n')
    write_overlay(tmp_path, "base/forgotten")
    assert {code for code, _ in codes(tmp_path)} == {"E403", "E406"}
    assert len(codes(tmp_path)) == 4


def test_an_overlay_before_its_requirement_is_refused(tmp_path: Path) -> None:
    write_series(tmp_path, "base/a", "base/b")
    write_overlay(tmp_path, "base/a", 'requires = ["base/b"]\n')
    write_overlay(tmp_path, "base/b")
    assert codes(tmp_path)[0][0] == "E405"


def test_new_files_outside_the_two_packages_are_refused(tmp_path: Path) -> None:
    write_series(tmp_path, "base/a")
    write_overlay(tmp_path, "base/a", files__torch__x="", files__megatron____init__="")
    (tmp_path / "base/a/files/megatron").mkdir(exist_ok=True)
    (tmp_path / "base/a/files/megatron/__init__.py").write_text("")
    refused = [text for _, text in codes(tmp_path) if "may not hold" in text]
    assert any("torch/x" in text for text in refused)
    assert any("megatron/__init__.py" in text for text in refused)


@pytest.mark.parametrize("line", ["base", "Base/A", "base/a", "base/a/b"])
def test_a_bad_or_repeated_series_line_is_refused(tmp_path: Path, line: str) -> None:
    write_series(tmp_path, "base/a", line)
    write_overlay(tmp_path, "base/a")
    assert codes(tmp_path)[0][0] == "E402"


def test_an_unknown_id_is_answered_with_the_nearest(tmp_path: Path) -> None:
    write_series(tmp_path, "fusions/fused-swiglu")
    write_overlay(tmp_path, "fusions/fused-swiglu")
    with pytest.raises(DefinitionError, match="did you mean fusions/fused-swiglu"):
        load(tmp_path).get("fusion/fused-swiglu")
