"""What holds for any edits: the identity, composition, and agreement with what was meant."""

import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mindspeed_overlay.apply import apply_patches
from mindspeed_overlay.port.carry import same_meaning
from mindspeed_overlay.port.engine import run_port
from mindspeed_overlay.port.merge import merge_file
from unit.port.port_sets import MLP, TAGS, make_job, make_tree, write_overlay

NUM_FUNCTIONS = 4
NUM_STATEMENTS = 4
PLACES = [(f, s) for f in range(NUM_FUNCTIONS) for s in range(NUM_STATEMENTS)]
FEW = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


def write_module(edits: dict[tuple[int, int], str], *, moved: bool = False) -> bytes:
    """A module of functions; an edit adds a statement before another one."""
    blocks = []
    for f in range(NUM_FUNCTIONS):
        lines = [f"def compute_{f}(a, b):"]
        for s in range(NUM_STATEMENTS):
            lines += [f"    {edits[f, s]}"] if (f, s) in edits else []
            lines.append(f"    v{s} = step_{f}_{s}(a, b)")
        lines.append(f"    return v{NUM_STATEMENTS - 1}")
        blocks.append("\n".join(lines) + "\n")
    return "\n\n".join(reversed(blocks) if moved else blocks).encode()


def edits_of(word: str) -> st.SearchStrategy[dict[tuple[int, int], str]]:
    """Some places, each with a statement of its own."""
    return st.sets(st.sampled_from(PLACES), min_size=1, max_size=5).map(
        lambda places: {(f, s): f"{word}_{f}_{s} = {word}(a)" for f, s in places}
    )


@FEW
@given(edits_of("ours"))
def test_a_port_to_the_same_file_is_the_identity(ours: dict[tuple[int, int], str]) -> None:
    base, edited = write_module({}), write_module(ours)
    merged = merge_file(base, edited, base)
    assert merged.is_clean
    assert merged.data == edited
    assert {piece.outcome for piece in merged.pieces} == {"re-anchored"}


@FEW
@given(edits_of("ours"))
def test_functions_put_in_another_order_take_their_edits_along(
    ours: dict[tuple[int, int], str],
) -> None:
    base, edited, new = write_module({}), write_module(ours), write_module({}, moved=True)
    merged = merge_file(base, edited, new)
    assert merged.is_clean
    assert merged.data == write_module(ours, moved=True)


@FEW
@given(edits_of("ours"), edits_of("theirs"))
def test_independent_edits_are_all_kept(
    ours: dict[tuple[int, int], str], theirs: dict[tuple[int, int], str]
) -> None:
    merged = merge_file(write_module({}), write_module(ours), write_module(theirs))
    assert merged.is_clean
    for statement in (*ours.values(), *theirs.values()):
        assert merged.data.count(f"    {statement}\n".encode()) == 1
    lines = merged.data.decode().splitlines()
    for (f, s), statement in ours.items():
        at = lines.index(f"    {statement}")
        assert f"    v{s} = step_{f}_{s}(a, b)" in lines[at + 1 : at + 3]


@FEW
@given(edits_of("ours"))
def test_edits_that_upstream_made_too_are_absorbed(ours: dict[tuple[int, int], str]) -> None:
    edited = write_module(ours)
    merged = merge_file(write_module({}), edited, edited)
    assert merged.data == edited
    assert {piece.outcome for piece in merged.pieces} == {"absorbed"}


@settings(
    max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
@given(edits_of("ours"), edits_of("one"), edits_of("two"))
def test_port_then_port_is_port(
    ours: dict[tuple[int, int], str],
    one: dict[tuple[int, int], str],
    two: dict[tuple[int, int], str],
) -> None:
    base = b"def ours(a):\n    return a\n\n\ndef one(a):\n    return a\n\n\n"
    states = [base + write_module(edits) for edits in ({}, one, one | two)]
    trees = dict(zip(TAGS, (make_tree({MLP: state}) for state in states), strict=True))
    edited = base + write_module(ours)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_overlay(root, "fusions/one", {MLP: (states[0], edited)})
        at_once = run_port(make_job(root, trees)).overlays[0]
        first = run_port(make_job(root, {tag: trees[tag] for tag in TAGS[:2]})).overlays[0]
        assert not first.is_open or at_once.is_open
        if first.is_open or at_once.is_open:
            return
        middle = apply(trees[TAGS[1]], dict(first.forms()))
        write_overlay(root / "again", "fusions/one", {MLP: (states[1], middle)}, tag=TAGS[1])
        later = {tag: trees[tag] for tag in TAGS[1:]}
        second = run_port(make_job(root / "again", later)).overlays[0]
        assert not second.is_open
        results = [apply(trees[TAGS[2]], dict(r.forms())) for r in (at_once, second)]
        assert results[0] == results[1]
        assert same_meaning(*results)


def apply(tree: dict[str, bytes], forms: dict[str, object]) -> bytes:
    return apply_patches(tree, [("fusions/one", p) for p in forms.values()])[MLP]  # type: ignore[misc]
