"""Somebody else's runtime patches: found in the source alone, followed by release."""

from pathlib import Path

import pytest

from mindspeed_overlay.drift.monkey import Registration, read_monkey_patches
from mindspeed_overlay.drift.monkey_fate import (
    Fate,
    count_fates,
    find_targets,
    follow_targets,
    guess_base,
)
from mindspeed_overlay.drift.symbols import Symbols
from unit.upkeep_sets import MLP, RELEASES, UTILS, V1, V3, encode


def read(folder: Path, text: str, **others: str) -> dict[str, Registration]:
    (folder / "fork").mkdir(exist_ok=True)
    for name, other in {"adaptor": text, **others}.items():
        (folder / "fork" / f"{name}.py").write_text(other)
    found = read_monkey_patches(folder)
    assert found.unread == ()
    return {r.target: r for r in found.registrations}


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ('m.register_patch("megatron.core.mlp.MLP.forward", new)', "core.mlp.MLP.forward"),
        ('register_patch(orig_func_name="megatron.core.a.b", new_func=new)', "core.a.b"),
        ('register_patch("megatron.core." + "a.b", new)', "core.a.b"),
        ("for n in ('b', 'c'):\n    apply_patch(f'megatron.core.a.{n}', new)", "core.a.c"),
        ("P = 'megatron.core.a'\nregister_patch(P + '.b', new)", "core.a.b"),
        ("for t, f in [('megatron.core.a.b', new)]:\n    register_patch(t, f)", "core.a.b"),
        ("def rows():\n    return [('megatron.core.a.b', new, True)]", "core.a.b"),
        ("import megatron.core.a\nmegatron.core.a.b = new", "core.a.b"),
        ("from megatron.core import a as x\nx.b = new", "core.a.b"),
        ("from megatron.core.a import C\ndef f():\n    C.forward = new", "core.a.C.forward"),
        ("from megatron.core.a import C\nsetattr(C, 'forward', new)", "core.a.C.forward"),
        ("import sys\nsys.modules['megatron.old'] = new", "old"),
    ],
)
def test_every_way_to_patch_is_found(tmp_path: Path, text: str, target: str) -> None:
    assert f"megatron.{target}" in read(tmp_path, text)


@pytest.mark.parametrize(
    "text",
    [
        'register_patch("torch.nn.Linear", new)',
        'print("megatron.core.a.b", new)',
        "from megatron.training import get_args\nargs = get_args()\nargs.x = 1",
        "import torch\ntorch.x = 1",
        "x = ('megatron.core.a.b', 'text')",
    ],
)
def test_what_patches_nothing_of_megatron_is_not_found(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, text) == {}


def test_a_computed_target_and_a_broken_file_are_listed_as_unread(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("register_patch(make_name(), new)\n")
    (tmp_path / "b.py").write_text("def broken(:\n")
    found = read_monkey_patches(tmp_path)
    assert found.registrations == ()
    assert [line.partition(":")[0] for line in found.unread] == ["b.py", "a.py"]


WRAPPERS = """\
from functools import wraps
def real_wrapper(fn):
    @wraps(fn)
    def wrapper(*args):
        return fn(*args)
    return wrapper
def pseudo_wrapper(fn):
    @wraps(fn)
    def wrapper(*args):
        return 1
    return wrapper
def plain(x):
    return x
"""


@pytest.mark.parametrize(
    ("new", "effect"),
    [
        ("real_wrapper", "wraps"),
        ("pseudo_wrapper", "replaces"),
        ("plain", "replaces"),
        ("unknown_wrapper", "wraps"),
        ("None", "replaces"),
    ],
)
def test_a_wrapper_is_what_uses_the_function_it_gets(tmp_path: Path, new: str, effect: str) -> None:
    text = f"from fork.wrap import *\nfrom fork.wrap import {new}\n" if new != "None" else ""
    text += f'register_patch("megatron.core.a.b", {new})\n'
    assert read(tmp_path, text, wrap=WRAPPERS)["megatron.core.a.b"].effect == effect


def test_an_assignment_that_calls_the_original_wraps(tmp_path: Path) -> None:
    text = "from megatron.core import a\na.b = cached(a.b)\na.c = cached(other)\n"
    found = read(tmp_path, text)
    assert [found[f"megatron.core.a.{n}"].effect for n in "bc"] == ["wraps", "replaces"]


REGISTRY = """\
register_patch("megatron.core.mlp.MLP.forward", ours)
register_patch("megatron.core.utils.divide", ours)
register_patch("megatron.core.utils.get_rank", ours)
register_patch("megatron.core.utils.Group.size", ours)
register_patch("megatron.core.alias.divide", ours)
register_patch("megatron.core.utils.SCALE", 3)
register_patch("megatron.core.nowhere.f", ours)
"""
ALIAS = {"megatron/core/__init__.py": "from megatron.core import utils as alias\n"}


def follow(folder: Path, base: dict[str, str], later: dict[str, str]) -> dict[str, Fate]:
    (folder / "fork.py").write_text(REGISTRY)
    patches = read_monkey_patches(folder)
    old, new = Symbols(encode(base)), Symbols(encode(later))
    targets = find_targets(patches, old.files)
    assert set(targets.others) == {"megatron.core.utils.SCALE", "megatron.core.nowhere.f"}
    return {fate.target.name: fate for fate in follow_targets(targets.known, old, new)}


def test_each_target_is_followed_to_a_later_release(tmp_path: Path) -> None:
    fates = follow(tmp_path, {**V1, **ALIAS}, {**V3, **ALIAS})
    assert {name.removeprefix("megatron.core."): f.kind for name, f in fates.items()} == {
        "mlp.MLP.forward": "body changed",
        "utils.divide": "signature changed",
        "alias.divide": "signature changed",
        "utils.get_rank": "gone",
        "utils.Group.size": "same",
    }
    assert fates["megatron.core.mlp.MLP.forward"].is_stale
    assert not fates["megatron.core.utils.Group.size"].is_stale
    gone = fates["megatron.core.utils.get_rank"]
    assert gone.missing == "silent"
    assert [s.symbol for s in gone.change.successors] == ["megatron.core.ranks:get_rank"]
    numbers = count_fates(fates.values())
    assert (numbers["same"], numbers["changed"], numbers["gone"]) == (1, 3, 1)
    assert (numbers["replaced changed"], numbers["wrapped changed"]) == (3, 0)


def test_a_lost_class_is_loud_and_a_target_that_moved_by_import_is_there(tmp_path: Path) -> None:
    later = {
        **V1,
        **ALIAS,
        "megatron/core/utils.py": UTILS.replace("class Group", "class Other").replace(
            "def divide(a, b):\n    return a // b\n", "from megatron.core.maths import divide\n"
        ),
        "megatron/core/maths.py": "def divide(a, b):\n    return a // b\n",
    }
    fates = follow(tmp_path, {**V1, **ALIAS}, later)
    assert fates["megatron.core.utils.Group.size"].missing == "loud"
    assert fates["megatron.core.utils.divide"].kind == "same"


def test_the_base_is_the_release_on_which_most_targets_are(tmp_path: Path) -> None:
    (tmp_path / "fork.py").write_text(REGISTRY)
    patches = read_monkey_patches(tmp_path)
    files = {tag: encode(dict(texts)) for tag, texts in RELEASES.items()}
    assert guess_base(patches, files) == "core_v1"
    files["core_v1"] = encode({"megatron/core/mlp.py": MLP})
    assert guess_base(patches, files) == "core_v2"
