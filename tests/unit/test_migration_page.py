"""The table of MindSpeed's flags claims no support that is not there."""

import re
import runpy
from pathlib import Path

from mindspeed_overlay.data import default_overlays, default_pins
from mindspeed_overlay.overlay import load_overlays
from mindspeed_overlay.pins import load_pins

PAGE = Path(__file__).parents[2] / "docs" / "migrating-from-mindspeed.md"
FLAGS = "base/options/files/mindspeed/core/options/mindspeed_flags.py"
STATES = {"supported", "upstream", "replaced", "planned"}


def read_rows() -> list[tuple[str, str, str]]:
    """Flag, state and remark of each row."""
    text = PAGE.read_text("utf-8").partition("## Every flag")[2]
    pattern = r"^\| `(--[a-z0-9_-]+)` \| [^|]+ \| ([^|]+) \| ([^|]*) \|$"
    return re.findall(pattern, text, re.MULTILINE)


def test_each_flag_stands_there_once_with_a_known_state() -> None:
    rows = read_rows()
    assert len(rows) > 150
    assert len({flag for flag, *_ in rows}) == len(rows)
    assert {state for _, state, _ in rows} <= STATES
    assert all(remark.strip() for _, state, remark in rows if state == "replaced")


def test_supported_flags_are_options_of_an_overlay() -> None:
    tags = tuple(release.tag for release in load_pins(default_pins()).releases)
    overlays = load_overlays(default_overlays(), tags=tags).overlays
    known = {option.flag for overlay in overlays for option in overlay.options}
    supported = {flag for flag, state, _ in read_rows() if state == "supported"}
    assert supported
    assert supported <= known


def test_parsers_know_the_same_flags_of_mindspeed() -> None:
    read_flags = runpy.run_path(str(default_overlays() / FLAGS))["read_flags"]
    assert set(read_flags()) == {flag for flag, *_ in read_rows()}
    assert read_flags()["--use-ascend-coc"] == "coc"
