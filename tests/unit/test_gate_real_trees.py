"""The gate on real Megatron: silent where nothing is wrong, and it sees across a whole tree."""

import pytest

from harness.trees import COMPARED_RELEASES, Trees
from mindspeed_overlay.errors import Problem
from mindspeed_overlay.gate import check_gate
from mindspeed_overlay.tree import Files

STATE = "megatron/core/parallel_state.py"
UTILS = "megatron/core/utils.py"
MLP = "megatron/core/transformer/mlp.py"
NEW = "mindspeed/core/models/specs.py"
PYTHON = "3.12"


@pytest.fixture(scope="module", params=COMPARED_RELEASES)
def pristine(request: pytest.FixtureRequest, trees: Trees) -> Files:
    folder = trees.pristine(request.param)
    paths = (p for p in folder.rglob("*") if p.suffix in (".py", ".so"))
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in paths}


def check(pristine: Files, path: str, old: bytes, new: bytes) -> list[Problem]:
    before = pristine.get(path, b"")
    assert before.count(old) == 1 or not before, path
    after = {**pristine, path: before.replace(old, new) if before else new}
    return check_gate(pristine, after, python=PYTHON, touched={path: ("fusions/x",)})


def test_lines_added_around_upstream_code_raise_nothing(pristine: Files) -> None:
    touched = [p for p in pristine if p.endswith(".py") and "/core/transformer/" in p]
    assert len(touched) > 30
    head, tail = b"import os as _os\n\n_os.getcwd()\n", b"\n\ndef _added_hook(x):\n    return x\n"
    after = {**pristine, **{p: head + pristine[p] + tail for p in touched}}
    ids = dict.fromkeys(touched, ("base/hooks",))
    assert check_gate(pristine, after, python=PYTHON, touched=ids) == []


def test_a_renamed_group_getter_is_missed_wherever_it_is_called(pristine: Files) -> None:
    old = b"def get_tensor_model_parallel_group("
    problems = check(pristine, STATE, old, b"def get_tp_group(")
    assert {p.code for p in problems} <= {"E602", "E604", "E606"}
    assert len({p.path for p in problems}) >= 5
    assert all("get_tensor_model_parallel_group" in p.message for p in problems)
    assert all(p.overlay == "fusions/x" for p in problems)


def test_a_parameter_put_first_breaks_untouched_callers(pristine: Files) -> None:
    old = b"def divide(numerator, denominator)"
    problems = check(pristine, UTILS, old, b"def divide(group, numerator, denominator)")
    assert {p.code for p in problems} == {"E605"}
    assert len({p.path for p in problems}) >= 5
    assert all("divide needs denominator" in p.message for p in problems)


def test_a_keyword_that_this_release_lacks_is_refused(pristine: Files) -> None:
    source = (
        b"from megatron.core.models.gpt.gpt_layer_specs import get_mlp_module_spec\n\n\n"
        b"def build():\n    return get_mlp_module_spec(use_te=False, use_fused_swiglu=True)\n"
    )
    (problem,) = check(pristine, NEW, b"", source)
    assert (problem.code, problem.path, problem.symbol) == ("E605", NEW, "build")
    assert problem.message.endswith("get_mlp_module_spec has no parameter use_fused_swiglu")


def test_an_import_that_a_patch_drops_is_missed(pristine: Files) -> None:
    problems = check(pristine, MLP, b"\nimport torch\n", b"\n")
    assert {(p.code, p.path) for p in problems} == {("E602", MLP)}
    assert all("`torch`" in p.message for p in problems)
