"""docs/ops/: a page for each operator of mindspeed.ops."""

from pathlib import Path

import pytest

from mindspeed_overlay.data import default_overlays, default_pins
from mindspeed_overlay.operator_docs import describe_operators, find_operators
from mindspeed_overlay.overlay import load_overlays
from mindspeed_overlay.pins import load_pins
from unit.overlay_sets import TAGS, load, write_overlay, write_series

FOLDER = Path(__file__).parents[2] / "docs" / "ops"
SOURCE = '''
import torch


def helper(x: int) -> int:
    """No operator."""


def npu_twice(
    x: torch.Tensor, factor: float = 2.0, *, dim: int = -1, out: torch.Tensor | None = None
) -> torch.Tensor:
    """A multiple.

        out = factor * x

    Args:
        x: [s, b], bf16 or
            fp32.
        factor: any.

    Returns:
        As `x`.

    Raises:
        RuntimeError: there is no NPU.
    """
    import torch_npu

    return torch_npu.npu_fusion_attention(x) + torch_npu.npu_rotary_mul(x)
'''


def write_operator(root: Path, source: str) -> None:
    write_series(root, "misc/a")
    write_overlay(root, "misc/a")
    path = root / "misc" / "a" / "files" / "mindspeed" / "ops" / "npu_twice.py"
    path.parent.mkdir(parents=True)
    path.write_text(source, "utf-8")


def test_operator_pages_are_up_to_date() -> None:
    tags = tuple(release.tag for release in load_pins(default_pins()).releases)
    overlays = load_overlays(default_overlays(), tags=tags).overlays
    pages = describe_operators(find_operators(overlays, tags))
    found = {path.name: path.read_text("utf-8") for path in FOLDER.iterdir()}
    assert found == pages, "`mindspeed-overlay show --operators docs/ops`"


def test_every_page_says_formula_shapes_dtypes_constraints_and_floor() -> None:
    pages = [path for path in FOLDER.iterdir() if path.name != "README.md"]
    assert pages
    for page in pages:
        text = page.read_text("utf-8")
        for needed in (
            "    out = ",
            "## Arguments",
            "## Result",
            "## Constraints",
            "fp32",
            " on; ",
        ):
            assert needed in text, f"{page.name}: {needed}"


def test_a_page_is_read_off_the_source(tmp_path: Path) -> None:
    write_operator(tmp_path, SOURCE)
    pages = describe_operators(find_operators(load(tmp_path).overlays, TAGS))
    assert sorted(pages) == ["README.md", "npu_twice.md"]
    page = pages["npu_twice.md"]
    for part in (
        "    out = factor * x\n",
        "    npu_twice(\n        x: torch.Tensor,\n        factor: float = 2.0,\n        *,\n"
        "        dim: int = -1,\n        out: torch.Tensor | None = None,\n    ) -> torch.Tensor\n",
        "- `x`: [s, b], bf16 or fp32.\n- `factor`: any.\n",
        "\nAs `x`.\n",
        "- `RuntimeError`: there is no NPU.\n",
        "`npu_fusion_attention`, `npu_rotary_mul` of torch_npu, 2.7.1 on; overlay `misc/a`.\n",
    ):
        assert part in page


def test_an_operator_without_docstring_is_an_error(tmp_path: Path) -> None:
    write_operator(tmp_path, "def npu_twice(x):\n    return x\n")
    with pytest.raises(ValueError, match="npu_twice"):
        list(find_operators(load(tmp_path).overlays, TAGS))
