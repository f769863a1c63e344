"""Every outcome a patch can have when upstream changes around it."""

from pathlib import Path

import pytest

from mindspeed_overlay.apply import apply_patches
from mindspeed_overlay.port.engine import Ported, run_port
from mindspeed_overlay.tree import git_blob_id
from unit.port.port_sets import MLP, TAGS, make_job, make_tree, port_file, text, write_overlay

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
GUARD = b"        if self.config.fused:\n            return fused(y)\n"
CALL = b"        y = self.activate(y)\n"
IMPORT = b"from mindspeed.fused import fused\n"
EDITED = BASE.replace(CALL, GUARD + CALL).replace(b"import os\n", b"import os\n" + IMPORT)
FORWARD = BASE[BASE.index(b"    def forward") : BASE.index(b"    def activate")]


def result(ported: Ported, target: str = MLP) -> bytes:
    """The new file with the carried patch, applied by the strict rules."""
    (overlay,) = ported.overlays
    assert not overlay.is_open, [(p.outcome, p.notes, p.pieces) for p in overlay.patches]
    forms = [(overlay.overlay, patch) for patch in overlay.forms().values()]
    return apply_patches(ported.job.new.files, forms, release=TAGS[1])[target]


def outcomes(ported: Ported) -> set[str]:
    return {piece.outcome for patch in ported.patches for piece in patch.pieces}


def notes(ported: Ported) -> str:
    pieces = [piece.note for patch in ported.patches for piece in patch.pieces]
    return "\n".join([*pieces, *(note for patch in ported.patches for note in patch.notes)])


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
        (CALL, b"        y = self.activate( y )\n", "structural"),
        (CALL, b"        y = self.activate(\n            y,\n        )\n", "structural"),
    ],
)
def test_changes_near_an_edit_leave_it_in_its_place(
    tmp_path: Path, old: bytes, new: bytes, outcome: str
) -> None:
    ported = port_file(tmp_path, BASE, EDITED, BASE.replace(old, new))
    assert result(ported) == EDITED.replace(old, new)
    assert ported.overlays[0].outcome == outcome


def test_a_function_moved_within_its_file_is_followed(tmp_path: Path) -> None:
    new = BASE.replace(FORWARD, b"") + b"\n" + FORWARD.rstrip() + b"\n"
    edited = FORWARD.replace(CALL, GUARD + CALL)
    ported = port_file(tmp_path, BASE, EDITED, new)
    assert edited.rstrip() in result(ported)


def test_an_unchanged_function_is_re_anchored_where_its_neighbourhood_changed(
    tmp_path: Path,
) -> None:
    twin = text("""
        def f(a):
            b = a
            use(b)
            return b
    """)
    before = b"def use(b):\n    pass\n\n\n" + twin
    after = before.replace(
        b"    b = a\n    use(b)\n",
        b"    b = a\n    from mindspeed.fused import hook\n    hook(b)\n    use(b)\n",
    )
    new = before.replace(b"    b = a\n", b"    b = a\n\n")
    ported = port_file(tmp_path, before, after, new)
    assert ported.overlays[0].outcome in ("re-anchored", "structural")
    assert b"    hook(b)\n    use(b)\n" in result(ported)


def test_a_block_indented_anew_by_upstream_takes_the_edit_with_it(tmp_path: Path) -> None:
    body = b"        y = x * scale\n" + CALL
    deep = b"        if x is not None:\n" + body.replace(b"        y", b"            y")
    new = BASE.replace(body + b"        return y\n", deep + b"        return y\n").replace(
        b"scale=1.0):", b"scale=1.0, y=None):"
    )
    ported = port_file(tmp_path, BASE, EDITED, new)
    wanted = b"            if self.config.fused:\n                return fused(y)\n"
    assert wanted + b"            y = self.activate(y)\n" in result(ported)
    assert ported.overlays[0].outcome == "structural"


def test_a_class_that_moved_to_another_file_takes_its_edit_along(tmp_path: Path) -> None:
    before = BASE + b"\n\ndef rest():\n    return os.sep\n"
    hooked = b"        from mindspeed.fused import fused\n" + GUARD + CALL
    after = before.replace(CALL, hooked)
    at, end = before.index(b"class MLP"), before.index(b"def rest")
    moved = b"import math\n\n\n" + before[at:end].rstrip() + b"\n"
    left = b"import os\n\nfrom megatron.core.layers import MLP\n\n\n" + before[end:]
    write_overlay(tmp_path, "fusions/one", {MLP: (before, after)})
    layers = "megatron/core/layers.py"
    trees = {
        TAGS[0]: make_tree({MLP: before}),
        TAGS[1]: make_tree({MLP: left, layers: moved}),
    }
    ported = run_port(make_job(tmp_path, trees))
    assert hooked in result(ported, layers)
    assert ported.overlays[0].outcome == "moved"
    assert layers in notes(ported)


def test_a_renamed_file_is_followed_and_its_similarity_shown(tmp_path: Path) -> None:
    new = "megatron/core/transformer/mlp.py"
    write_overlay(tmp_path, "fusions/one", {MLP: (BASE, EDITED)})
    changed = BASE.replace(b'"""A layer."""', b'"""One layer."""')
    trees = {TAGS[0]: make_tree({MLP: BASE}), TAGS[1]: make_tree({new: changed})}
    ported = run_port(make_job(tmp_path, trees))
    assert result(ported, new) == EDITED.replace(b'"""A layer."""', b'"""One layer."""')
    assert "% alike" in notes(ported)
    assert ported.overlays[0].outcome == "moved"


def test_a_renamed_local_is_renamed_in_the_edit(tmp_path: Path) -> None:
    new = BASE.replace(FORWARD, FORWARD.replace(b"y", b"out").replace(b"outpe", b"ype"))
    ported = port_file(tmp_path, BASE, EDITED, new)
    assert b"            return fused(out)\n" in result(ported)
    assert "renamed y to out" in notes(ported)


def test_a_renamed_method_is_taken_for_its_successor_with_the_similarity(tmp_path: Path) -> None:
    new = BASE.replace(b"def forward(", b"def run(")
    ported = port_file(tmp_path, BASE, EDITED, new)
    assert result(ported) == EDITED.replace(b"def forward(", b"def run(")
    assert "MLP.forward is taken for MLP.run now" in notes(ported)


def test_an_edit_goes_to_the_part_that_upstream_split_off(tmp_path: Path) -> None:
    new = BASE.replace(
        b"        y = x * scale\n        y = self.activate(y)\n        return y\n",
        b"        return self._finish(x * scale)\n",
    ).replace(
        b"    def activate(",
        b"    def _finish(self, y):\n        y = self.activate(y)\n        return y\n\n"
        b"    def activate(",
    )
    ported = port_file(tmp_path, BASE, EDITED, new)
    wanted = b"    def _finish(self, y):\n" + GUARD + CALL
    assert wanted in result(ported)
    assert "upstream moved this part of MLP.forward to MLP._finish" in notes(ported)


def test_an_edit_that_upstream_made_is_absorbed(tmp_path: Path) -> None:
    fixed = BASE.replace(b"math.tanh(y)", b"math.erf(y)")
    ported = port_file(tmp_path, BASE, fixed, b"# new\n" + fixed)
    assert ported.overlays[0].outcome == "absorbed"
    assert ported.overlays[0].forms() == {}
    assert not ported.overlays[0].is_open


def test_an_edit_that_upstream_made_in_another_layout_is_absorbed(tmp_path: Path) -> None:
    fixed = BASE.replace(b"math.tanh(y)", b"math.erf(y, 1)")
    new = BASE.replace(b"math.tanh(y)", b"math.erf(\n            y,\n            1,\n        )")
    ported = port_file(tmp_path, BASE, fixed, new)
    assert outcomes(ported) == {"absorbed"}


def test_an_absorbed_edit_leaves_the_others_of_its_patch(tmp_path: Path) -> None:
    both = EDITED.replace(b"math.tanh(y)", b"math.erf(y)")
    ported = port_file(tmp_path, BASE, both, BASE.replace(b"math.tanh(y)", b"math.erf(y)"))
    assert result(ported) == both
    assert "absorbed" in outcomes(ported)


def test_a_method_that_is_gone_is_a_conflict(tmp_path: Path) -> None:
    new = BASE.replace(FORWARD, b"    def run(self):\n        return None\n\n")
    ported = port_file(tmp_path, BASE, EDITED, new)
    assert ported.overlays[0].outcome == "conflict"
    assert "upstream has no MLP.forward any more" in notes(ported)


def test_a_class_gone_without_a_trace_takes_its_edits_with_it(tmp_path: Path) -> None:
    other = b"\n\ndef keep(a):\n    b = a\n    return b\n"
    edit = (b"    b = a\n", b"    b = a\n    b = b\n")
    before, after = BASE + other, EDITED.replace(IMPORT, b"") + other.replace(*edit)
    after = after.replace(GUARD, b"        y = y\n")
    new = b"import math\nimport os\n" + other
    ported = port_file(tmp_path, before, after, new)
    assert result(ported) == new.replace(*edit)
    assert "dropped" in outcomes(ported)
    assert "all traces" in notes(ported)


def test_a_class_whose_name_is_still_used_is_not_dropped(tmp_path: Path) -> None:
    new = b"import math\nimport os\n\nfrom somewhere import MLP\n\nlayer = MLP\n"
    ported = port_file(tmp_path, BASE, EDITED, new)
    assert ported.overlays[0].is_open


@pytest.mark.parametrize("used", [True, False])
def test_a_whole_file_that_is_gone_is_dropped_only_if_nothing_of_it_is_used(
    tmp_path: Path, used: bool
) -> None:
    other = "megatron/core/other.py"
    write_overlay(
        tmp_path, "fusions/one", {MLP: (BASE, EDITED), other: (b"x = 1\n", b"x = 1\ny = 2\n")}
    )
    user = b"x = 1\n" + (
        b"\n\ndef load():\n    from megatron.core.mlp import MLP\n" if used else b""
    )
    trees = {TAGS[0]: make_tree({MLP: BASE}), TAGS[1]: make_tree({other: user})}
    ported = run_port(make_job(tmp_path, trees))
    found = {patch.target: patch.outcome for patch in ported.patches}
    assert found[MLP] == ("gone" if used else "dropped")
    assert ported.overlays[0].is_open == used


def test_two_overlays_on_one_function_are_carried_one_on_the_other(tmp_path: Path) -> None:
    second = EDITED.replace(b"        return y\n", b"        y = fused(y)\n        return y\n")
    blobs = {MLP: git_blob_id(BASE)}
    write_overlay(tmp_path, "fusions/one", {MLP: (BASE, EDITED)})
    write_overlay(
        tmp_path,
        "fusions/two",
        {MLP: (EDITED, second)},
        requires=("fusions/one",),
        blobs=blobs,
    )
    change = (b"        y = x * scale\n", b"        y = scale * x\n        z = 1\n")
    trees = {TAGS[0]: make_tree({MLP: BASE}), TAGS[1]: make_tree({MLP: BASE.replace(*change)})}
    ported = run_port(make_job(tmp_path, trees))
    assert not ported.open
    forms = [(o.overlay, patch) for o in ported.overlays for patch in o.forms().values()]
    files = apply_patches(ported.job.new.files, forms, release=TAGS[1])
    assert files[MLP] == second.replace(*change)


def test_an_overlay_waits_for_the_one_it_requires(tmp_path: Path) -> None:
    second = EDITED.replace(b"        return y\n", b"        y = fused(y)\n        return y\n")
    write_overlay(tmp_path, "fusions/one", {MLP: (BASE, EDITED)})
    write_overlay(tmp_path, "fusions/two", {MLP: (EDITED, second)}, requires=("fusions/one",))
    new = BASE.replace(b"        y = self.activate(y)\n", b"        y = max(y, 0)\n").replace(
        b"        y = x * scale\n", b"        y = x + scale\n"
    )
    trees = {TAGS[0]: make_tree({MLP: BASE}), TAGS[1]: make_tree({MLP: new})}
    ported = run_port(make_job(tmp_path, trees))
    one, two = ported.overlays
    assert one.outcome == "conflict"
    assert two.outcome == "blocked"
    assert "fusions/one, which it requires, has a conflict" in notes(ported)


def test_edits_of_one_statement_by_both_sides_are_a_conflict_with_three_texts(
    tmp_path: Path,
) -> None:
    after = BASE.replace(b"y = x * scale", b"y = x * scale * 2")
    ported = port_file(tmp_path, BASE, after, BASE.replace(b"y = x * scale", b"y = x * scale * 3"))
    (piece,) = [p for p in ported.patches[0].pieces if p.outcome == "conflict"]
    assert piece.symbol == "MLP.forward"
    assert b"y = x * scale\n" in piece.base
    assert b"* 3" in piece.ours
    assert b"* 2" in piece.theirs
    marked = ported.patches[0].after
    assert marked.count(b"<<<<<<< core_v2.0.0\n") == marked.count(b">>>>>>> fusions/one") == 1


def test_different_parts_of_one_call_are_both_kept(tmp_path: Path) -> None:
    before = BASE.replace(CALL, b"        y = self.activate(y, a=1, b=2)\n").replace(
        b"def activate(self, y)", b"def activate(self, y, a=0, b=0, c=0, d=0)"
    )
    after = before.replace(b"b=2)", b"b=2, c=3)")
    new = before.replace(b"a=1,", b"a=7,").replace(b"b=2)", b"b=2, d=4)")
    ported = port_file(tmp_path, before, after, new)
    assert b"y = self.activate(y, a=7, b=2, d=4, c=3)" in result(ported)


def test_parameters_added_by_both_sides_are_both_kept_upstreams_first(tmp_path: Path) -> None:
    after = BASE.replace(b"scale=1.0):", b"scale=1.0, mine=None):")
    new = BASE.replace(b"scale=1.0):", b"scale=1.0, theirs=None):")
    ported = port_file(tmp_path, BASE, after, new)
    assert b"scale=1.0, theirs=None, mine=None):" in result(ported)


def test_positional_arguments_added_by_both_sides_are_a_conflict(tmp_path: Path) -> None:
    before = BASE.replace(b"def activate(self, y)", b"def activate(self, y, *rest)")
    after = before.replace(b"self.activate(y)", b"self.activate(y, 1)")
    new = before.replace(b"self.activate(y)", b"self.activate(y, 2)")
    assert port_file(tmp_path, before, after, new).overlays[0].outcome == "conflict"


def test_an_import_block_put_in_another_order_takes_the_import(tmp_path: Path) -> None:
    new = BASE.replace(
        b"import math\nimport os\n", b"import abc\nimport os\nimport sys\nimport math\n"
    )
    ported = port_file(tmp_path, BASE, EDITED, new)
    assert result(ported).count(IMPORT) == 1
    assert not ported.open


def test_an_import_that_upstream_has_by_now_is_not_added_twice(tmp_path: Path) -> None:
    after = BASE.replace(b"import os\n", b"import os\nimport sys\n").replace(
        b"        return y\n", b"        y = sys.intern(y)\n        return y\n"
    )
    new = BASE.replace(b"import math\nimport os\n", b"import sys\nimport math\nimport re\n")
    ported = port_file(tmp_path, BASE, after, new)
    assert result(ported).count(b"import sys\n") == 1


def test_a_decorator_added_by_upstream_does_not_matter(tmp_path: Path) -> None:
    new = BASE.replace(
        b"    def forward",
        b"    @staticmethod\n    def helper():\n        pass\n\n    @property\n    def forward",
    )
    ported = port_file(tmp_path, BASE, EDITED, new)
    assert GUARD + CALL in result(ported)


def test_crlf_files_stay_crlf(tmp_path: Path) -> None:
    before, after = BASE.replace(b"\n", b"\r\n"), EDITED.replace(b"\n", b"\r\n")
    new = before.replace(b"y = x * scale", b"y = scale * x")
    ported = port_file(tmp_path, before, after, new)
    done = result(ported)
    assert done == after.replace(b"y = x * scale", b"y = scale * x")
    assert done.count(b"\n") == done.count(b"\r\n")


def test_a_guard_goes_right_before_what_it_guards(tmp_path: Path) -> None:
    new = BASE.replace(CALL, b"        if scale > 1:\n            y = y / scale\n" + CALL)
    ported = port_file(tmp_path, BASE, EDITED, new)
    assert b"            y = y / scale\n" + GUARD + CALL in result(ported)


def test_statements_that_share_a_name_with_upstreams_are_a_conflict(tmp_path: Path) -> None:
    after = BASE.replace(CALL, b"        y = y + 1\n" + CALL)
    new = BASE.replace(CALL, b"        y = y * 2\n" + CALL)
    ported = port_file(tmp_path, BASE, after, new)
    assert ported.overlays[0].outcome == "conflict"
    assert "share `y`" in notes(ported)


def test_a_merge_that_breaks_a_name_is_a_conflict(tmp_path: Path) -> None:
    """Clean is not correct: what FlagScale's patches taught."""
    after = BASE.replace(
        b"        return y\n", b"        y = os.path.join(y, y)\n        return y\n"
    )
    new = BASE.replace(b"import os\n", b"from os import path\n")
    ported = port_file(tmp_path, BASE, after, new)
    assert ported.overlays[0].is_open
    assert "the merge is wrong: E602" in notes(ported)


def test_a_merge_that_breaks_a_call_is_a_conflict(tmp_path: Path) -> None:
    after = BASE.replace(CALL, b"        y = self.activate(y, 2)\n").replace(
        b"def activate(self, y)", b"def activate(self, y, n)"
    )
    caller = b"\n\ndef call(mlp: MLP):\n    return MLP.activate(mlp, 1)\n"
    ported = port_file(tmp_path, BASE, after, BASE + caller)
    assert "the merge is wrong: E605" in notes(ported)


def test_a_try_that_upstream_put_around_an_import_too_absorbs_ours(tmp_path: Path) -> None:
    guarded = b"try:\n    import os\nexcept ImportError:\n    os = None\n"
    theirs = b"try:\n    import os\n\n    HAVE = True\nexcept ImportError:\n    HAVE = False\n"
    after = BASE.replace(b"import os\n", guarded)
    ported = port_file(tmp_path, BASE, after, BASE.replace(b"import os\n", theirs))
    assert ported.overlays[0].outcome == "absorbed"


def test_a_patch_that_applies_but_uses_a_renamed_parameter_follows_the_rename(
    tmp_path: Path,
) -> None:
    """The text fits exactly, and would be a NameError."""
    new = BASE.replace(b"def __init__(self, config, width)", b"def __init__(self, config, size)")
    new = new.replace(b"        self.width = width\n", b"        self.width = size\n")
    after = BASE.replace(
        b"        self.config = config\n",
        b"        self.config = config\n        self.twice = width * 2\n",
    )
    ported = port_file(tmp_path, BASE, after, new)
    assert b"        self.twice = size * 2\n" in result(ported)
    assert "renamed width to size" in notes(ported)


def test_an_import_finds_a_place_where_all_imports_around_it_changed(tmp_path: Path) -> None:
    before = BASE.replace(b"import math\nimport os\n", b"import math\nimport abc\nimport os\n")
    after = before.replace(b"import os\n", b"from mindspeed.fused import fused\nimport os\n")
    after = after.replace(CALL, GUARD + CALL)
    block = b"import math\nimport re\nfrom os import path as os\n"
    new = before.replace(b"import math\nimport abc\nimport os\n", block)
    ported = port_file(tmp_path, before, after, new)
    assert result(ported).count(IMPORT) == 1


def test_what_replaces_a_statement_that_is_gone_is_a_conflict(tmp_path: Path) -> None:
    after = BASE.replace(b"        self.width = width\n", b"        self.width = width + 1\n")
    new = BASE.replace(b"        self.width = width\n", b"")
    assert port_file(tmp_path, BASE, after, new).overlays[0].outcome == "conflict"
