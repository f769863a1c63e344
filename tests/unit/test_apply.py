"""Applying patches: exact places, honest refusals, proof by inversion."""

from collections.abc import Mapping

import pytest

from mindspeed_overlay.apply import Applied, apply_patch, apply_patches, check_symbols, land_patches
from mindspeed_overlay.errors import ApplyError
from mindspeed_overlay.patch import Patch, make_patch, parse_patch, serialize_patch
from mindspeed_overlay.syntax import parse_module

TARGET = "megatron/core/mlp.py"
MODULE = b'''"""A module."""

import torch


class MLP:
    def forward(self, x):
        y = self.up(x)
        y = torch.relu(y)
        return self.down(y)

    def backward(self, x):
        y = self.up(x)
        y = torch.relu(y)
        return self.down(y)


def build(config):
    return MLP(config)
'''


def edit(data: bytes, *swaps: tuple[bytes, bytes]) -> bytes:
    """`data` with the first occurrence of each text exchanged."""
    for old, new in swaps:
        assert old in data
        data = data.replace(old, new, 1)
    return data


def patch_of(before: bytes, *swaps: tuple[bytes, bytes], target: str = TARGET) -> Patch:
    """The patch that makes the swaps, having gone through a patch file."""
    symbol_of = parse_module(before).symbol_at
    after = edit(before, *swaps)
    patch = make_patch(before, after, target=target, header={}, symbol_of=symbol_of)
    return parse_patch(serialize_patch(patch), name=patch.name)


def apply(data: bytes, patch: Patch) -> Applied:
    return apply_patch(data, patch, span_of=parse_module(data).span_of)


def codes_of(files: Mapping[str, bytes], *patches: tuple[str, Patch]) -> list[str]:
    with pytest.raises(ApplyError) as caught:
        apply_patches(files, patches, release="core_v0.16.1")
    return [problem.code for problem in caught.value.problems]


HOOK = (b"        y = torch.relu(y)\n", b"        y = hook(y)\n")


def test_a_hunk_applies_at_its_recorded_line_without_asking_for_symbols() -> None:
    def never(symbol: str) -> None:
        raise AssertionError(symbol)

    applied = apply_patch(MODULE, patch_of(MODULE, HOOK), span_of=never)
    assert applied == Applied(edit(MODULE, HOOK), (0,))


def test_a_hunk_moves_with_its_function() -> None:
    grown = edit(MODULE, (b"import torch\n", b"import os\nimport sys\nimport torch\n"))
    applied = apply(grown, patch_of(MODULE, HOOK))
    assert applied == Applied(edit(grown, HOOK), (2,))
    assert b"def backward(self, x):\n        y = self.up(x)\n        y = torch.relu" in applied.data


def test_a_hunk_whose_function_is_gone_does_not_move_to_its_twin() -> None:
    renamed = edit(MODULE, (b"def forward", b"# one\n    def forward_impl"))
    assert codes_of({TARGET: renamed}, ("a/b", patch_of(MODULE, HOOK))) == ["E507"]


def test_two_places_in_one_symbol_are_ambiguous_and_both_are_named() -> None:
    patch = patch_of(MODULE, HOOK)
    twice = b"        y = self.up(x)\n        y = torch.relu(y)\n        return self.down(y)\n"
    doubled = edit(
        MODULE, (b"        y = self.up(x)\n", b"        if x:\n            pass\n" + twice)
    )
    doubled = edit(doubled, (twice, twice + b"        y = self.up(x)\n"))
    with pytest.raises(ApplyError) as caught:
        apply(doubled, patch)
    (problem,) = caught.value.problems
    assert problem.code == "E503"
    assert "lines 10, 13" in problem.message


def test_applying_twice_is_an_error() -> None:
    patch = patch_of(MODULE, HOOK)
    assert codes_of({TARGET: apply(MODULE, patch).data}, ("a/b", patch)) == ["E505"]


def test_every_failure_of_a_run_is_reported_with_its_place_and_next_command() -> None:
    first = patch_of(MODULE, (b"import torch\n", b"import torch\nimport hook\n"), HOOK)
    second = patch_of(MODULE, (b"return MLP(config)", b"return Hook(config)"))
    changed = edit(MODULE, (b"torch.relu", b"torch.gelu"), (b"MLP(config)", b"MLP(config, 1)"))
    with pytest.raises(ApplyError) as caught:
        apply_patches({TARGET: changed}, [("a/b", first), ("c/d", second)], release="core_v9")
    places = [(p.code, p.overlay, p.hunk, p.line, p.symbol) for p in caught.value.problems]
    assert places == [("E502", "a/b", 2, 8, "MLP.forward"), ("E502", "c/d", 1, 18, "build")]
    first_problem = caught.value.problems[0]
    assert "hunk 2 of 2 does not fit megatron/core/mlp.py:8 (in MLP.forward)" in str(first_problem)
    assert "expects `        y = torch.relu(y)` at line 9" in first_problem.message
    assert "mindspeed-overlay port a/b --to core_v9" in first_problem.hint


def test_check_symbols_finds_a_hunk_that_fits_in_another_function() -> None:
    patch = patch_of(MODULE, HOOK)
    renamed = edit(MODULE, (b"def forward", b"def forward_impl"))
    (landing,) = land_patches({TARGET: renamed}, [("a/b", patch)])
    (problem,) = check_symbols(landing, symbol_at=parse_module(renamed).symbol_at)
    assert (problem.code, problem.symbol) == ("E507", "MLP.forward_impl")
    assert "made for MLP.forward" in problem.message
