"""Applying patches: exact places, honest refusals, proof by inversion."""

import hashlib
from collections.abc import Mapping
from dataclasses import replace

import pytest

from mindspeed_overlay import apply as apply_module
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


def plain_patch(before: bytes, after: bytes, target: str = "a.txt") -> Patch:
    patch = make_patch(before, after, target=target, header={}, symbol_of=lambda _: "<module>")
    return parse_patch(serialize_patch(patch), name=patch.name)


def failure_of(data: bytes, patch: Patch) -> tuple[str, str]:
    with pytest.raises(ApplyError) as caught:
        apply_patches({patch.target: data}, [("a/b", patch)])
    (problem,) = caught.value.problems
    return problem.code, problem.message


LINES = b"one\ntwo\nthree\n"
CHANGED = b"one\n2\nthree\n"


def test_a_crlf_patch_on_an_lf_file_is_named_as_such_and_the_reverse() -> None:
    crlf = plain_patch(LINES.replace(b"\n", b"\r\n"), CHANGED.replace(b"\n", b"\r\n"))
    lf = plain_patch(LINES, CHANGED)
    code, message = failure_of(LINES, crlf)
    assert (code, "it has CRLF line ends, the file has LF" in message) == ("E504", True)
    code, message = failure_of(LINES.replace(b"\n", b"\r\n"), lf)
    assert (code, "it has LF line ends, the file has CRLF" in message) == ("E504", True)


def test_a_crlf_patch_applies_to_a_crlf_file() -> None:
    before, after = LINES.replace(b"\n", b"\r\n"), CHANGED.replace(b"\n", b"\r\n")
    assert apply_patches({"a.txt": before}, [("a/b", plain_patch(before, after))]) == {
        "a.txt": after
    }


def test_reindented_context_is_refused_and_shown() -> None:
    code, message = failure_of(LINES.replace(b"one", b"  one"), plain_patch(LINES, CHANGED))
    assert (code, "only with other white space, at line 1" in message) == ("E502", True)


def test_bytes_that_are_not_utf8_pass_through() -> None:
    before = b"# caf\xe9\n" + LINES + b"\xff\n"
    after = before.replace(b"two", b"\xfc")
    patch = plain_patch(before, after)
    assert apply_patches({"a.txt": before}, [("a/b", patch)]) == {"a.txt": after}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"one\ntwo", b"one\n2"),
        (b"one\ntwo", b"one\ntwo\n"),
        (b"one\ntwo\n", b"one\ntwo"),
        (b"one\ntwo", b"one\ntwo\nthree"),
        (b"", b"one"),
        (b"one", b""),
    ],
)
def test_a_missing_final_newline_is_kept_gained_or_lost_as_recorded(
    before: bytes, after: bytes
) -> None:
    patch = plain_patch(before, after)
    assert apply_patches({"a.txt": before}, [("a/b", patch)]) == {"a.txt": after}


def test_a_line_without_newline_is_not_joined_to_what_follows() -> None:
    patch = plain_patch(b"one\ntwo\n", b"one\n2")
    code, message = failure_of(b"one\ntwo\nthree\n", patch)
    assert (code, "more lines follow" in message) == ("E502", True)


def test_a_newline_at_the_end_is_part_of_the_exact_context() -> None:
    code, message = failure_of(b"one\ntwo", plain_patch(b"one\ntwo\n", b"one\n2\n"))
    assert (code, "`two` without a line end stands" in message) == ("E502", True)


def test_a_binary_target_is_refused() -> None:
    code, message = failure_of(LINES + b"\0", plain_patch(LINES, CHANGED))
    assert (code, "NUL byte" in message) == ("E509", True)


def test_a_patch_of_a_file_that_is_not_there_is_an_error() -> None:
    assert codes_of({}, ("a/b", plain_patch(LINES, CHANGED))) == ["E501"]


@pytest.mark.parametrize("target", ["/etc/passwd", "a/../b", ".git/config", "x/.GiT/y", "a\\b"])
def test_an_unsafe_target_is_refused_even_where_the_tree_holds_it(target: str) -> None:
    patch = replace(plain_patch(LINES, CHANGED), target=target)
    assert codes_of({target: LINES}, ("a/b", patch)) == ["E512"]


def test_hunks_that_would_cross_are_refused() -> None:
    before = b"".join(b"line %d\n" % n for n in range(20))
    patch = plain_patch(before, before.replace(b"line 4\n", b"four\n").replace(b"line 15", b"x"))
    lines = before.splitlines(keepends=True)
    swapped = b"".join([*lines[12:], *lines[:12]])
    assert codes_of({"a.txt": swapped}, ("a/b", patch)) == ["E506"]


@pytest.mark.parametrize(
    "fault", [b"one\n2\nthre\n", b"one\n3\nthree\n", b"", b"one\n2\nthree\n\n"]
)
def test_a_result_that_cannot_be_undone_is_refused(
    monkeypatch: pytest.MonkeyPatch, fault: bytes
) -> None:
    genuine = apply_module._exchange

    def exchange(data: bytes, swaps: list[apply_module.Swap]) -> bytes:
        return fault if data == LINES else genuine(data, swaps)

    monkeypatch.setattr(apply_module, "_exchange", exchange)
    assert codes_of({"a.txt": LINES}, ("a/b", plain_patch(LINES, CHANGED))) == ["E508"]


def test_repeated_lines_are_told_apart_by_the_pristine_files_hash() -> None:
    before, after = b"x\nx\n", b"x\nx\nx\n"
    patch = plain_patch(before, after)
    assert codes_of({"a.txt": after}, ("a/b", patch)) == ["E505"]
    blob = hashlib.sha1(b"blob 4\0" + before).hexdigest()
    known = replace(patch, header={**patch.header, "Base-Blob": (f"core_v1 {blob}",)})
    assert apply_patches({"a.txt": before}, [("a/b", known)]) == {"a.txt": after}
    assert codes_of({"a.txt": after}, ("a/b", known)) == ["E505"]


def test_a_place_among_repeated_lines_is_unsure_below_an_earlier_insertion() -> None:
    before = b"top\n" + b"x = 1\n" * 12 + b"end\n"
    first = plain_patch(before, before.replace(b"top\n", b"top\nmore\n"))
    lines = before.splitlines(keepends=True)
    second = plain_patch(before, b"".join([*lines[:6], b"y\n", *lines[6:]]))
    apply_patches({"a.txt": before}, [("c/d", second)])
    # The recorded line fits, and so does the line that it has become.
    assert codes_of({"a.txt": before}, ("a/b", first), ("c/d", second)) == ["E503"]


def test_a_repeated_place_is_followed_below_an_earlier_insertion() -> None:
    pair = b"x = 1\nx = 2\nx = 3\nx = 4\n"
    before = b"top\n" + pair + b"middle\n" + pair + b"end\n"
    first = plain_patch(before, before.replace(b"top\n", b"top\nmore\n"))
    after = before.replace(b"middle\nx = 1\nx = 2\n", b"middle\nx = 1\nx = 2\ny\n")
    (hunk,) = plain_patch(before, after).hunks
    lines = (b" x = 2\n", b"+y\n", b" x = 3\n")
    short = replace(hunk, old_start=8, new_start=8, lines=lines)
    second = replace(plain_patch(before, after), hunks=(short,))
    result = apply_patches({"a.txt": before}, [("a/b", first), ("c/d", second)])
    assert result == {"a.txt": after.replace(b"top\n", b"top\nmore\n")}


def test_a_property_and_its_setter_share_a_symbol() -> None:
    before = (
        b"class A:\n    @property\n    def x(self):\n        return self._x\n\n"
        b"    @x.setter\n    def x(self, value):\n        self._x = value\n"
    )
    patch = patch_of(before, (b"self._x = value", b"self._x = hook(value)"))
    moved = b"import os\n\n\n" + before
    (landing,) = land_patches({TARGET: moved}, [("a/b", patch)])
    assert landing.applied.offsets == (3,)
    assert check_symbols(landing, symbol_at=parse_module(moved).symbol_at) == []
