"""Lint: what applies and still should not be in an overlay."""

from dataclasses import replace
from pathlib import Path

import pytest

from mindspeed_overlay.apply import land_patches
from mindspeed_overlay.check_overlay import Examiner, list_requirements
from mindspeed_overlay.lint import find_overlaps, is_idle, lint_patch, lint_sets, report_overlaps
from mindspeed_overlay.lint_copies import CopyFinder, lint_copies
from mindspeed_overlay.patch import Patch, parse_patch
from unit.overlay_sets import TAGS, load, write_overlay, write_series
from unit.upkeep_sets import MLP, V1, encode, hook, write_patch, write_set

TARGET = "megatron/core/mlp.py"


def edit(after: str, *, feature: str = "base/one") -> Patch:
    text = write_patch(MLP, after, target=TARGET, feature=feature)
    return parse_patch(text.encode(), name="megatron.core.mlp.patch")


def codes(patch: Patch) -> list[str]:
    return [problem.code for problem in lint_patch(patch, overlay="base/one")]


@pytest.mark.parametrize(
    "after",
    [
        MLP.replace("        x = x + 0", "        # why\n        x = x + 0"),
        MLP.replace("x = x + 0", "x = x  +  0"),
        MLP.replace("\n\nclass", "\n\n\nclass"),
    ],
    ids=["comment", "spaces", "blank"],
)
def test_a_hunk_of_comments_or_white_space_alone_is_refused(after: str) -> None:
    assert codes(edit(after)) == ["E430"]


def test_an_indented_line_is_a_change() -> None:
    assert codes(edit(MLP.replace("        return y", "        if x:\n            return y"))) == []
    assert not is_idle([b"    return y\n"], [b"        return y\n"])


def test_white_space_at_the_end_of_an_added_line_is_refused_with_its_hunk() -> None:
    (problem,) = lint_patch(edit(MLP.replace("x + 0", "x + 1  ")), overlay="base/one")
    assert (problem.code, problem.hunk, problem.symbol) == ("E431", 1, "MLP.forward")


def test_an_honest_hook_has_no_finding() -> None:
    assert codes(edit(hook(MLP))) == []


def test_sets_that_serve_no_release_are_named(tmp_path: Path) -> None:
    root = write_set(tmp_path)
    (root / "base/one/overlay.toml").write_text(
        'id = "base/one"\nsummary = "s"\nlevel = 0\nreleases = ">=core_v2"\n'
    )
    for since in ("core_v2", "core_v3"):
        text = (root / "base/one/patches/core_v1/megatron.core.mlp.patch").read_text()
        folder = root / "base/one/patches" / since
        folder.mkdir()
        (folder / "megatron.core.mlp.patch").write_text(text)
    (root / "base/one/files@core_v2/mindspeed").mkdir(parents=True)
    (root / "base/one/files@core_v2/mindspeed/x.py").write_text("")
    problems = lint_sets(load(root).get("base/one"), TAGS)
    assert [p.message for p in problems] == [
        "patches/core_v1/ serves no release",
        "files/ serves no release",
    ]
    assert {p.code for p in problems} == {"E432"}


def overlaps(first: str, second: str) -> list[tuple[str, bool]]:
    pristine = encode(V1)
    patches = [("base/one", edit(first)), ("base/two", edit(second, feature="base/two"))]
    landings = [(o, land_patches(pristine, [(o, p)])[0]) for o, p in patches]
    found = find_overlaps(landings, pristine)
    return [(overlap.symbol, overlap.at_line > 0) for overlap in found]


def test_two_overlays_in_one_function_are_told_and_at_one_place_refused() -> None:
    top = MLP.replace("        x = x + 0", "        x = one(x)\n        x = x + 0")
    same = MLP.replace("        x = x + 0", "        x = two(x)\n        x = x + 0")
    end = MLP.replace("        return y", "        y = two(y)\n        return y")
    other = MLP.replace("        self.size =", "        two()\n        self.size =")
    assert overlaps(top, same) == [("MLP.forward", True)]
    assert overlaps(top, end) == [("MLP.forward", False)]
    assert overlaps(top, other) == []


def test_an_overlay_may_edit_the_place_of_one_it_requires(tmp_path: Path) -> None:
    write_series(tmp_path, "base/one", "base/two", "base/three")
    write_overlay(tmp_path, "base/one")
    write_overlay(tmp_path, "base/two", 'requires = ["base/one"]\n')
    write_overlay(tmp_path, "base/three", 'requires = ["base/two"]\n')
    requires = list_requirements(load(tmp_path))
    assert requires["base/three"] == {"base/one", "base/two"}
    pristine = encode(V1)
    top = MLP.replace("        x = x + 0", "        x = one(x)\n        x = x + 0")
    landing = land_patches(pristine, [("base/one", edit(top))])[0]
    (overlap,) = find_overlaps([("base/one", landing), ("base/three", landing)], pristine)
    assert report_overlaps([overlap], requires) == []
    (problem,) = report_overlaps([replace(overlap, overlays=("base/three", "base/x"))], requires)
    assert (problem.code, problem.path) == ("E433", TARGET)


UPSTREAM = """\
def route(tokens, probabilities, num_experts, capacity, pad):
    scores = probabilities.softmax(dim=-1)
    top_scores, top_indices = scores.topk(num_experts, dim=-1)
    mask = tokens.new_zeros(scores.shape).scatter(1, top_indices, 1).bool()
    if capacity is not None:
        limit = int(capacity * tokens.shape[0] / num_experts)
        order = scores.masked_fill(~mask, float("-inf")).argsort(dim=0, descending=True)
        mask = mask.logical_and(order < limit)
    if pad:
        mask = pad_mask(mask, limit)
    return tokens[mask], top_scores, top_indices
"""


def find_copies(text: str) -> list[str]:
    finder = CopyFinder(encode({"megatron/core/moe.py": UPSTREAM, **V1}))
    problems = lint_copies(finder, {"mindspeed/moe.py": text.encode()}, overlay="moe/x")
    return [f"{p.code} {p.symbol}" for p in problems]


def test_a_copied_function_is_found_also_when_edited_reformatted_and_commented() -> None:
    edited = UPSTREAM.replace("def route", "def our_route").replace("if pad:", "if pad and ours:")
    assert find_copies(edited) == ["E434 our_route"]
    nested = "class A:\n" + "".join(f"    {line}\n" for line in edited.splitlines())
    assert find_copies(nested.replace("    return", "    # ours\n        return")) == [
        "E434 A.our_route"
    ]


def test_code_that_uses_the_same_names_in_its_own_way_is_no_copy() -> None:
    own = (
        "def route(tokens, probabilities, num_experts, capacity, pad):\n"
        "    limit = capacity_of(tokens, num_experts, capacity)\n"
        "    routed = fused_route(probabilities, tokens, limit=limit, pad=pad)\n"
        "    top_scores, top_indices = routed.scores, routed.indices\n"
        "    mask = routed.mask if limit is None else drop(routed.mask, top_scores, limit)\n"
        "    chosen = gather(tokens, mask, indices=top_indices, order=routed.order)\n"
        "    return chosen, top_scores, top_indices\n"
    )
    assert find_copies(own) == []


def test_a_short_function_is_never_called_a_copy() -> None:
    assert find_copies(MLP) == []


def test_the_examiner_puts_the_findings_of_an_overlay_together(tmp_path: Path) -> None:
    root = write_set(tmp_path)
    place = root / "base/one/patches/core_v1/megatron.core.mlp.patch"
    place.write_text(
        write_patch(MLP, MLP.replace("x + 0", "x + 1 "), target=TARGET, feature="base/one")
    )
    (root / "base/one/files/mindspeed/core/moe.py").write_text(UPSTREAM)
    pristine = encode({"megatron/core/moe.py": UPSTREAM, **V1})
    overlays = load(root)
    examiner = Examiner.of(overlays, "core_v1", TAGS, pristine)
    assert [p.code for p in examiner.lint(overlays.get("base/one"))] == ["E431", "E434"]
