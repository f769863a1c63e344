"""Edits that upstream's new statements have to follow: taken along, or told, never left behind."""

from pathlib import Path

import pytest

from mindspeed_overlay.port.document import Document
from mindspeed_overlay.port.everywhere import find_substitution
from unit.port.port_sets import MLP, TAGS, port_file, text
from unit.port.test_port_outcomes import notes, result

RANGES = text("""
    import torch


    class Layer:
        def run(self, x):
            torch.cuda.nvtx.range_push("run")
            y = x * 2
            torch.cuda.nvtx.range_pop()
            return y
""")
IMPORT = b"import torch\nfrom megatron.core.ranges import nvtx\n"
OURS = RANGES.replace(b"torch.cuda.nvtx.", b"nvtx.").replace(b"import torch\n", IMPORT)
RANGES_PATH = "megatron__core__ranges.py"
MODULE = b"class nvtx:\n    range_push = range_pop = print\n"


def test_a_name_exchanged_everywhere_is_exchanged_in_the_statements_that_replaced_them(
    tmp_path: Path,
) -> None:
    """As in core_v0.17.1: pushes and pops of the caller moved into a context manager."""
    new = text("""
        import torch


        class Layer:
            def enter(self, name):
                if name:
                    torch.cuda.nvtx.range_push(name)
                try:
                    yield
                finally:
                    torch.cuda.nvtx.range_pop()

            def run(self, x):
                with self.enter("run"):
                    y = x * 2
                return y
    """)
    ported = port_file(tmp_path, RANGES, OURS, new, target=MLP, **{RANGES_PATH: MODULE})
    wanted = new.replace(b"torch.cuda.nvtx.", b"nvtx.").replace(b"import torch\n", IMPORT)
    assert result(ported) == wanted
    assert "at all 2 places" in notes(ported)


def test_a_name_that_upstream_uses_no_more_takes_its_edits_and_their_import_along(
    tmp_path: Path,
) -> None:
    """As in core_v0.18.2, where helpers of upstream's own took the place of every range."""
    new = RANGES.replace(b'torch.cuda.nvtx.range_push("run")', b'push("run")').replace(
        b"torch.cuda.nvtx.range_pop()", b'pop("run")'
    )
    new = new.replace(b"import torch\n", b"import torch\n\nfrom .ranges import pop, push\n")
    ranges = b"class nvtx:\n    range_push = range_pop = print\n\n\npush = pop = print\n"
    ported = port_file(tmp_path, RANGES, OURS, new, target=MLP, **{RANGES_PATH: ranges})
    (patch,) = ported.patches
    assert patch.outcome == "dropped"
    assert "which upstream uses here no more" in notes(ported)


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        (b"a.b.c.f(1)\n", b"c.f(1)\n", "c for a.b.c"),
        (b"x = a.b(1)\n", b"x = c.b(1)\n", "c for a"),
        (b"with a.b.range(n):\n    a.b.pop()\n", b"with d.range(n):\n    d.pop()\n", "d for a.b"),
        (b"a.f(1)\na.f(2)\n", b"b.f(1)\na.f(2)\n", "None"),
        (b"f(1)\n", b"f(2)\n", "None"),
        (b"import a\na.f(1)\n", b"import a\nimport b\nb.f(1)\n", "b for a"),
        (b"import a\na.f(1)\n", b"import b\nb.f(1)\n", "None"),
        (b"f(x)\n", b"f(x)\ng(x)\n", "None"),
        (b"x.a.f(1)\na.f(2)\n", b"x.a.f(1)\nb.f(2)\n", "b for a"),
    ],
)
def test_a_substitution_is_one_that_holds_throughout(
    before: bytes, after: bytes, found: str
) -> None:
    assert str(find_substitution(Document(before), Document(after))) == found


CALLER = text("""
    def rotate(x, cut=0, fused=False):
        return x


    def turn(x, fused=False):
        return [rotate(x, cut=1)]
""")


def test_a_keyword_goes_to_every_call_that_upstream_made_of_one(tmp_path: Path) -> None:
    """As in core_v0.15.3, where rotary embedding of packed sequences got two branches."""
    new = CALLER.replace(
        b"    return [rotate(x, cut=1)]\n",
        b"    if x:\n        y = rotate(x, cut=1)\n        return y\n"
        b"    for part in x:\n        rotate(\n            part,\n            cut=2,\n        )\n",
    )
    after = CALLER.replace(b"cut=1)", b"cut=1, fused=fused)")
    ported = port_file(tmp_path, CALLER, after, new)
    merged = result(ported)
    assert b"y = rotate(x, cut=1, fused=fused)\n" in merged
    assert b"            cut=2,\n            fused=fused,\n        )\n" in merged
    assert "rotate has 2 calls now" in notes(ported)


def test_a_cast_put_around_a_value_keeps_the_edit_of_the_value(tmp_path: Path) -> None:
    before = text("""
        from typing import cast


        def make(config):
            norm = list(config)
            return norm
    """)
    after = before.replace(b"    return norm\n", b"    return sorted(norm, key=config)\n")
    new = before.replace(b"    return norm\n", b"    return cast(list, norm)\n")
    ported = port_file(tmp_path, before, after, new)
    assert result(ported).endswith(b"    return cast(list, sorted(norm, key=config))\n")


def test_an_import_unused_since_is_not_taken_for_used_because_a_module_has_its_name(
    tmp_path: Path,
) -> None:
    before = text("""
        try:
            import other  # to see whether it is there

            HAVE = True
        except ImportError:
            HAVE = False
    """)
    after = before.replace(b"import other  #", b"from mindspeed.fused import fused  #")
    new = b"from megatron.core.other import x\n\nHAVE = bool(x)\n"
    ported = port_file(tmp_path, before, after, new)
    assert ported.patches[0].outcome == "absorbed"
    assert "imports and uses" in notes(ported)


def test_an_argument_that_upstream_passes_on_beside_an_addition_that_repeats_it_is_a_conflict(
    tmp_path: Path,
) -> None:
    """As in core_v0.14.0, where swiglu got `cpu_offload_input`; ours would have lost it."""
    before = text("""
        def swiglu(x, bias, store=False, fuse_all=False):
            if bias is not None:
                out = apply(x, bias, store)
            else:
                out = x
            return out


        def apply(x, bias, store, offload=False):
            return x
    """)
    branch = b"    if fuse_all:\n        out = hook(x, bias, store)\n    elif bias is not None:\n"
    after = before.replace(b"    if bias is not None:\n", branch)
    after = after.replace(
        b"        out = hook", b"        from mindspeed.fused import hook\n\n        out = hook"
    )
    new = before.replace(
        b"store=False, fuse_all=False", b"store=False, fuse_all=False, offload=False"
    ).replace(b"apply(x, bias, store)\n", b"apply(x, bias, store, offload)\n")
    ported = port_file(tmp_path, before, after, new)
    assert ported.overlays[0].outcome == "conflict"
    assert "upstream passes `offload` on beside it" in notes(ported)


def test_an_import_that_upstream_added_to_a_replaced_package_is_a_conflict(tmp_path: Path) -> None:
    """As in core_v0.16.1: with half of the package's imports replaced, the rest would fail."""
    before = text("""
        try:
            import engine as te

            HAVE = True
        except ImportError:
            HAVE = False


        def run(x):
            return te.run(x)
    """)
    after = before.replace(b"import engine as te", b"from mindspeed import fused as te")
    line = b"    import engine as te\n"
    new = before.replace(line, line + b"    from engine.fp8 import autocast\n").replace(
        b"return te.run(x)", b"return autocast(te.run(x))"
    )
    ported = port_file(tmp_path, before, after, new)
    assert ported.overlays[0].outcome == "conflict"
    assert "upstream imports more of engine" in notes(ported)
    assert ported.patches[0].pieces[0].since == TAGS[1]
    assert ported.patches[0].target == MLP


def test_a_branch_beside_branches_that_use_something_new_is_a_conflict(tmp_path: Path) -> None:
    """As in core_v0.18.2: every activation undoes an interleaving first, but for the added one."""
    before = text("""
        def activate(x, fast):
            if fast:
                y = x * 2
            else:
                y = x * 3
            return y
    """)
    head = b"    if fast:\n"
    hook = b"    if x is None:\n        from mindspeed.fused import hook\n\n        y = hook(x)\n"
    after = before.replace(head, hook + b"    elif fast:\n")
    new = before.replace(head, b"    mixed = x > 0\n\n" + head)
    used = new.replace(b"        y = x *", b"        x = x if mixed else -x\n        y = x *")
    ported = port_file(tmp_path / "used", before, after, used)
    assert ported.overlays[0].outcome == "conflict"
    assert "upstream computes `mixed` for the branches" in notes(ported)
    unused = port_file(tmp_path / "unused", before, after, new.replace(b"mixed =", b"print ="))
    assert not unused.overlays[0].is_open
