"""The pictures in the docs are those of the schedules."""

import importlib.util
from pathlib import Path

FIGURES = Path(__file__).parents[3] / "docs" / "figures"


def test_committed_pictures_are_what_the_schedules_draw() -> None:
    spec = importlib.util.spec_from_file_location("draw", FIGURES / "draw_context_parallel.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, picture in module.draw_all().items():
        committed = (FIGURES / name).read_text("utf-8")
        assert committed == picture, f"run docs/figures/draw_context_parallel.py: {name} is old"
