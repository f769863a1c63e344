"""Golden folders: `base/` with the overlay set `overlays/` gives `expected/`, or `errors.txt`.

Every case is applied as core_v2.0.0, one release after core_v1.0.0.
"""

from collections.abc import Mapping
from pathlib import Path

import pytest

from mindspeed_overlay.apply import apply_patches, check_symbols, land_patches
from mindspeed_overlay.errors import ApplyError
from mindspeed_overlay.overlay import load_overlays
from mindspeed_overlay.patch import check_header, parse_patch, serialize_patch
from mindspeed_overlay.syntax import parse_module

TAGS = ("core_v1.0.0", "core_v2.0.0")
GOLDEN = Path(__file__).parents[1] / "golden"
CASES = sorted(GOLDEN.iterdir())


def read_tree(root: Path) -> dict[str, bytes]:
    places = [place for place in root.rglob("*") if place.is_file()]
    return {place.relative_to(root).as_posix(): place.read_bytes() for place in places}


def apply_case(case: Path) -> Mapping[str, bytes]:
    overlays = load_overlays(case / "overlays", tags=TAGS).overlays
    patches = [
        (overlay.id, parse_patch(data, name=name))
        for overlay in overlays
        for name, data in overlay.patches_for(TAGS[-1], TAGS).items()
    ]
    base = read_tree(case / "base")
    files = apply_patches(base, patches, release=TAGS[-1])
    for landing in land_patches(base, patches, release=TAGS[-1]):
        symbol_at = parse_module(landing.before).symbol_at
        assert check_symbols(landing, symbol_at=symbol_at) == []
    for overlay in overlays:
        files.update(overlay.files_for(TAGS[-1], TAGS))
    return files


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_golden_case_gives_its_tree_or_its_errors(case: Path) -> None:
    errors = case / "errors.txt"
    if errors.exists():
        with pytest.raises(ApplyError) as caught:
            apply_case(case)
        assert f"{caught.value}\n" == errors.read_text()
    else:
        assert apply_case(case) == read_tree(case / "expected")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_golden_patches_are_canonical_and_have_whole_headers(case: Path) -> None:
    found = sorted(case.rglob("*.patch"))
    assert found
    for place in found:
        patch = parse_patch(place.read_bytes(), name=place.name)
        assert serialize_patch(patch) == place.read_bytes()
        overlay = place.parents[2].relative_to(case / "overlays").as_posix()
        assert check_header(patch, overlay=overlay, releases=[place.parent.name]) == []
