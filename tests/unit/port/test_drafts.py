"""Drafts from runtime patches: the edit alone, in upstream's layout, with its imports."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from mindspeed_overlay.apply import apply_patches
from mindspeed_overlay.cli import cli
from mindspeed_overlay.drift.monkey import read_monkey_patches
from mindspeed_overlay.patch import parse_patch
from mindspeed_overlay.port.drafts import Drafts, draft_patches, package_of
from unit.port.port_sets import MLP, load, make_tree, text
from unit.port.test_port_session import build_upstream

UPSTREAM = text('''
    import torch


    class MLP:
        """A layer."""

        @torch.no_grad()
        def forward(
            self,
            x: torch.Tensor,
            scale: float = 1.0,
        ) -> torch.Tensor:
            """Run the layer on x."""
            # First the scale,
            y = self.norm(x, eps=1e-5) * scale
            if self.bias is not None:
                y = y + self.bias

            # then the way out.
            y = self.activate(y, alpha='one')
            return y

        def norm(self, x, eps):
            return x


    def get_rank(group):
        """The rank."""
        size = len(group)
        assert size > 0
        return sorted(group)[0]
''')
COPY = """
import torch
from fork.ops import fused, unused
from megatron.core.mlp import MLP


@torch.no_grad()
def mlp_forward(self, x, scale=1.0):
    y = self.norm(x, eps=1e-5) * scale
    if self.bias is not None: y = y + self.bias
    if self.config.fused:
        return fused(y)
    y = self.activate(y, alpha="one")
    return y
"""
REGISTER = """
from fork.mlp import mlp_forward

register_patch("megatron.core.mlp.MLP.forward", mlp_forward)
"""
OPS = "def fused(y):\n    return y\n\n\nunused = None\n"


def draft(folder: Path, **files: str) -> Drafts:
    written = {"ops": OPS, "mlp": COPY, "adaptor": REGISTER, "__init__": "", **files}
    (folder / "fork").mkdir()
    for name, source in written.items():
        (folder / "fork" / f"{name}.py").write_text(source)
    patches = read_monkey_patches(folder)
    return draft_patches(patches, make_tree({MLP: UPSTREAM}), package="", python="3.10")


def test_the_draft_is_the_edit_alone_in_upstreams_layout_with_its_import(tmp_path: Path) -> None:
    found = draft(tmp_path)
    (made,) = found.drafts
    assert (made.path, made.symbol, made.problems) == (MLP, "MLP.forward", ())
    assert made.origin == "fork/mlp.py:8"
    assert made.similarity > 0.8
    assert made.note == ""
    lines = found.edited[MLP].splitlines()
    before = UPSTREAM.splitlines()
    assert [line.strip() for line in lines if line not in before] == [
        b"from fork.ops import fused",
        b"if self.bias is not None: y = y + self.bias",
        b"if self.config.fused:",
        b"return fused(y)",
    ]
    assert b'        """Run the layer on x."""\n' in found.edited[MLP]


def test_a_name_of_the_replacements_own_module_is_imported_from_there(tmp_path: Path) -> None:
    body = COPY.replace("from fork.ops import fused, unused\n", "SCALE = 2\n\n\n" + OPS)
    found = draft(tmp_path, mlp=body.replace("return fused(y)", "return fused(y) * SCALE"))
    assert (
        b"        from fork.mlp import SCALE\n        from fork.mlp import fused\n"
        in (found.edited[MLP])
    )
    assert found.drafts[0].problems == ()


def test_the_verdict_of_the_gate_stands_with_the_draft(tmp_path: Path) -> None:
    found = draft(tmp_path, mlp=COPY.replace("fused(y)", "nowhere(y)"))
    (problem,) = found.drafts[0].problems
    assert problem.code == "E602"
    assert "nowhere" in problem.message
    assert "gate: no" in found.drafts[0].describe()


def test_other_decorators_are_told(tmp_path: Path) -> None:
    found = draft(tmp_path, mlp=COPY.replace("@torch.no_grad()", "@torch.compile"))
    assert found.drafts[0].note == "without its decorators (torch.compile)"


@pytest.mark.parametrize(
    ("adaptor", "why"),
    [
        ("def other(group):\n    return 1\n", "no edited copy"),
        ("def other(f):\n    def run(*a):\n        return f(*a)\n    return run\n", "wrapped"),
        ("class other:\n    pass\n", "not a function of this tree"),
        ("other = None\n", "not a function of this tree"),
        (
            "def other(group):\n    global S\n    S = size = len(group)\n    assert size > 0\n"
            "    return sorted(group)[0]\n",
            "keeps state in its own module (S)",
        ),
        (
            "def other(group):\n    size = len(group)\n    assert size > 0\n"
            "    return sorted(group)[0]\n",
            "is the same",
        ),
    ],
)
def test_what_is_no_edited_copy_is_left_out_with_the_reason(
    tmp_path: Path, adaptor: str, why: str
) -> None:
    name = "other_wrapper" if why == "wrapped" else "other"
    source = adaptor.replace("other", name)
    source += f'register_patch("megatron.core.mlp.get_rank", {name})\n'
    found = draft(tmp_path, adaptor=source)
    assert found.drafts == ()
    assert why in dict(found.left_out)["megatron.core.mlp.get_rank"]


def test_of_several_replacements_the_closest_copy_is_taken(tmp_path: Path) -> None:
    far = "def far(self, x, scale=1.0):\n    return x\n"
    source = far + 'register_patch("megatron.core.mlp.MLP.forward", far)\n' + REGISTER
    assert draft(tmp_path, adaptor=source).drafts[0].origin == "fork/mlp.py:8"


def test_a_multi_line_string_that_would_be_indented_anew_is_left_out(tmp_path: Path) -> None:
    body = COPY.replace("return fused(y)", 'return fused("""a\nb""")')
    found = draft(tmp_path, mlp=body)
    assert "string of several lines" in dict(found.left_out)["megatron.core.mlp.MLP.forward"]


def test_a_package_is_read_as_what_it_is(tmp_path: Path) -> None:
    draft(tmp_path)
    assert (package_of(tmp_path / "fork"), package_of(tmp_path)) == ("fork", "")


def test_import_monkey_patches_writes_an_overlay_that_applies(tmp_path: Path) -> None:
    tree = make_tree({MLP: UPSTREAM})
    upstream = build_upstream(tmp_path / "upstream", tree)
    draft(tmp_path)
    arguments = ["--overlays", str(tmp_path / "mine"), "import", "--monkey-patches"]
    arguments += [str(tmp_path / "fork"), "--id", "mine/drafts", "--from", "core_v1.0.0"]
    arguments += ["--source", f"git:{upstream}", "--json"]
    done = CliRunner().invoke(cli, arguments, standalone_mode=False)
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert [d["target"] for d in report["drafts"]] == ["megatron.core.mlp.MLP.forward"]
    (overlay,) = load(tmp_path / "mine").overlays
    ((name, data),) = overlay.patch_sets["core_v1.0.0"].items()
    patch = parse_patch(data, name=name)
    applied = apply_patches(tree, [("mine/drafts", patch)])[MLP]
    assert b"        if self.config.fused:\n            return fused(y)\n" in applied
