"""docs/features.md: a row for each feature of MindSpeed, with what serves it."""

from pathlib import Path

import pytest

from mindspeed_overlay.data import default_overlays, default_pins
from mindspeed_overlay.feature_docs import Original, describe_features, load_originals
from mindspeed_overlay.overlay import load_overlays
from mindspeed_overlay.pins import load_pins
from unit.overlay_sets import TAGS, load, write_overlay, write_series

PAGE = Path(__file__).parents[2] / "docs" / "features.md"
# How many features MindSpeed has in each part; a lost row would go unseen otherwise.
NUM_FEATURES = {"A": 14, "B": 7, "C": 6}


def test_features_page_is_up_to_date() -> None:
    tags = tuple(release.tag for release in load_pins(default_pins()).releases)
    overlays = load_overlays(default_overlays(), tags=tags).overlays
    page = describe_features(load_originals(), overlays, tags)
    assert PAGE.read_text("utf-8") == page, "`mindspeed-overlay show --features > docs/features.md`"


def test_every_feature_has_one_full_row() -> None:
    originals = load_originals()
    assert len({original.name for original in originals}) == len(originals)
    for part, number in NUM_FEATURES.items():
        assert sum(original.part == part for original in originals) == number
    rows = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert len(cells) == sum(NUM_FEATURES.values()) + len(NUM_FEATURES)
    assert all(len(row) == 5 and all(row) for row in cells)


def test_state_is_the_overlay_where_the_set_has_it(tmp_path: Path) -> None:
    write_series(tmp_path, "misc/a")
    write_overlay(tmp_path, "misc/a")
    overlays = load(tmp_path).overlays
    built = Original("A", "one", "x", overlays=("misc/a", "misc/b"), open="why")
    missing = Original("A", "two", "x", overlays=("misc/b",), open="why")
    native = Original("B", "three", "x", native="--y")
    absent = Original("C", "four", "x", absent="no need")
    page = describe_features([built, missing, native, absent], overlays, TAGS)
    assert "| one | x | overlay | `misc/a` | all |\n" in page
    assert "| two | x | not built | why | - |\n" in page
    assert "| three | x | native | --y | - |\n" in page
    assert "| four | x | not applicable | no need | - |\n" in page
    with pytest.raises(ValueError, match="five names no overlay"):
        describe_features([Original("A", "five", "x", overlays=("misc/b",))], overlays, TAGS)
