"""docs/error-codes.md explains every code that the tool can print, and no other."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_code_has_a_row_in_the_page() -> None:
    sources = (ROOT / "tools/mindspeed_overlay").rglob("*.py")
    printed = {c for path in sources for c in re.findall(r'"(E\d{3})"', path.read_text("utf-8"))}
    page = (ROOT / "docs/error-codes.md").read_text("utf-8")
    explained = set(re.findall(r"^\| (E\d{3}) \|", page, re.MULTILINE))
    assert printed - explained == set()
    assert explained - printed == set()
