"""Every outcome a patch can have when upstream changes around it."""

from pathlib import Path

import pytest

from mindspeed_overlay.apply import apply_patches
from mindspeed_overlay.port.engine import Ported
from unit.port.port_sets import MLP, TAGS, port_file, text

BASE = text('''
    import math
    import os


    class MLP:
        """A layer."""

        def __init__(self, config, width):
            self.config = config
            self.width = width

        def forward(self, x, scale=1.0):
            """Run it."""
            y = x * scale
            y = self.activate(y)
            return y

        def activate(self, y):
            return math.tanh(y)
''')
EDITED = BASE.replace(
    b"        y = self.activate(y)\n",
    b"        if self.config.fused:\n            return fused(y)\n        y = self.activate(y)\n",
).replace(b"import os\n", b"import os\nfrom mindspeed.fused import fused\n")


def result(ported: Ported) -> bytes:
    """The new file with the carried patch, applied by the strict rules."""
    (overlay,) = ported.overlays
    assert not overlay.is_open, [p.pieces for p in overlay.patches]
    files = ported.job.new.files
    forms = [(overlay.overlay, patch) for patch in overlay.forms().values()]
    return apply_patches(files, forms, release=TAGS[1])[MLP]


def outcomes(ported: Ported) -> list[str]:
    return [piece.outcome for patch in ported.patches for piece in patch.pieces]


def test_a_patch_of_an_unchanged_file_is_exact(tmp_path: Path) -> None:
    ported = port_file(tmp_path, BASE, EDITED, BASE)
    assert ported.overlays[0].outcome == "exact"
    assert ported.overlays[0].still_serves
    assert result(ported) == EDITED


def test_lines_added_above_give_an_offset_and_the_old_patch_goes_on_serving(
    tmp_path: Path,
) -> None:
    new = b"# one\n# two\n" + BASE
    ported = port_file(tmp_path, BASE, EDITED, new)
    assert ported.overlays[0].outcome == "offset"
    assert ported.overlays[0].still_serves
    assert result(ported) == b"# one\n# two\n" + EDITED


@pytest.mark.parametrize(
    ("old", "new", "outcome"),
    [
        (b"        y = x * scale\n", b"        z = 1\n        y = x * scale\n", "offset"),
        (b'        """Run it."""\n', b'        """Run it well."""\n', "exact"),
        (b"        y = x * scale\n", b"        # times\n        y = x * scale\n", "offset"),
        (b"        y = x * scale\n", b"        y = scale * x\n", "structural"),
        (b"        y = self.activate(y)\n", b"        y = self.activate( y )\n", "structural"),
    ],
)
def test_changes_near_an_edit_leave_it_in_its_place(
    tmp_path: Path, old: bytes, new: bytes, outcome: str
) -> None:
    ported = port_file(tmp_path, BASE, EDITED, BASE.replace(old, new))
    assert result(ported) == EDITED.replace(old, new)
    assert ported.overlays[0].outcome == outcome
