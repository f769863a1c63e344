"""The adaptive algorithms: which rows move, what travels, and that it is still dense attention."""

import importlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_sim import ranks
from features.context_parallel import dense
from features.context_parallel.cp_case import Case
from features.context_parallel.cp_measures import measure
from features.context_parallel.test_attention_maths import check

EXACT = {"move": "exact"}
COARSE = {"move": "coarse"}


@pytest.fixture(scope="module")
def order(mindspeed_path: str) -> Iterator[ModuleType]:
    """`row_order`, imported from the overlays' folder and forgotten again."""
    sys.path.insert(0, mindspeed_path)
    yield importlib.import_module("mindspeed.core.context_parallel.row_order")
    sys.path.remove(mindspeed_path)
    for name in [name for name in sys.modules if name.split(".")[0] == "mindspeed"]:
        del sys.modules[name]


@settings(max_examples=40, deadline=None)
@given(data=st.data(), size=st.integers(1, 4), chunk=st.integers(1, 4))
def test_an_order_has_every_unit_and_saves_rounds(
    order: ModuleType, data: st.DataObject, size: int, chunk: int
) -> None:
    units = 2 * size * chunk
    seed = data.draw(st.integers(0, 2**20))
    density = data.draw(st.sampled_from((0.02, 0.1, 0.5)))
    seen = torch.rand(units, units, generator=torch.Generator().manual_seed(seed)) < density
    found = order.choose_order(seen, size)
    stay = order.deal_zigzag(list(range(units)), size)
    assert sorted(stay) == list(range(units))
    if found is not None:
        assert sorted(found) == list(range(units))
        rounds = [order.count_rounds(seen, x, size) for x in (found, stay)]
        assert rounds[0] < rounds[1]


def test_documents_whose_rows_take_turns_need_a_single_round(order: ModuleType) -> None:
    seen = ~dense.hide("scattered", 64, [0, 64])
    stay = order.deal_zigzag(list(range(64)), 4)
    assert order.count_rounds(seen, stay, 4) == 4
    assert order.count_rounds(seen, order.choose_order(seen, 4), 4) == 1


def test_a_band_needs_only_neighbours_and_a_causal_mask_keeps_its_zigzag(order: ModuleType) -> None:
    band = ~dense.hide("band", 64, [0, 64])
    assert order.count_rounds(band, order.choose_order(band, 4), 4) == 2
    assert order.choose_order(~dense.hide("causal", 64, [0, 64]), 4) is None


@pytest.mark.parametrize(
    ("length", "exact", "unit"),
    [(512, False, 1), (4096, False, 4), (8192 * 3, False, 24), (4096, True, 1), (1032, False, 3)],
)
def test_units_fill_chunks(order: ModuleType, length: int, exact: bool, unit: int) -> None:
    assert order.size_unit(length, 4, exact=exact) == unit


def make_cases(base: Case) -> list[Case]:
    """Masks, and every way to treat them."""
    kinds = ("band", "scattered", "late", "given")
    ways: tuple[dict[str, Any], ...]
    ways = (
        {},
        COARSE,
        {"move": "exact", "order_once": True},
        {"move": "exact", "mask_on_cpu": True},
    )
    cases = [replace(base, mask=kind, adapt=way) for kind in kinds for way in ways]
    own = {"own_blocks": True}
    return [*cases, replace(base, mask="band", adapt=own), replace(base, mask="late", adapt=own)]


@pytest.mark.parametrize("world_size", [2, 4])
def test_adaptive_attention_is_dense_attention(mindspeed_path: str, world_size: int) -> None:
    cases = make_cases(Case("adaptive"))
    if world_size == 4:
        cases += make_cases(Case("hybrid_adaptive", key_heads=8))
    cases.append(Case("adaptive", mask="band", adapt=EXACT, keep="full", key_heads=1))
    check(cases, mindspeed_path, world_size)


def test_adaptive_attention_on_the_device_is_dense_attention(mindspeed_path: str) -> None:
    base = Case("adaptive", npu=True, mask="band", adapt=EXACT)
    cases = [
        base,
        replace(base, dtype=torch.bfloat16, mask="scattered"),
        replace(base, adapt={"move": "coarse", "mask_on_cpu": True}, value_width=8),
        replace(base, algorithm="hybrid_adaptive", lanes=2),
        replace(base, adapt={"own_blocks": True}, fused_merge=True),
    ]
    check(cases, mindspeed_path, 4)


def test_rows_that_move_once_save_blocks_that_travel(
    mindspeed_path: str, costs: ModuleType
) -> None:
    sizes: dict[str, Any] = {"length": 64, "batch": 1, "heads": 4, "key_heads": 4}
    base = Case("adaptive", npu=True, mask="scattered", **sizes)
    cases = [base, replace(base, adapt=EXACT)]
    server = ranks.server(path=[mindspeed_path], preload=ranks.DEFAULT_PRELOAD)
    shape = costs.Shape(**sizes, width=16, value_width=16, element_bytes=4)
    # Of each rank's 16 rows those of three other documents leave; nothing is left to exchange.
    wants = (
        costs.cost_adaptive(shape, 4, blocks=3),
        costs.cost_adaptive(shape, 4, blocks=0, moved=12),
    )
    assert wants[1].forward_bytes < wants[0].forward_bytes
    for results in server.run(measure, cases, world_size=4, timeout_s=100):
        for found, want in zip(results, wants, strict=True):
            for key in ("forward_bytes", "backward_bytes", "forward_messages", "backward_messages"):
                assert found[key] == getattr(want, key), key


def test_blocks_that_were_not_set_are_asked_for(mindspeed_path: str) -> None:
    sys.path.insert(0, mindspeed_path)
    try:
        module = importlib.import_module("mindspeed.core.context_parallel.mask_blocks")
        with pytest.raises(ValueError, match="before the first step"):
            module.read_mask_blocks(2)
        module.set_mask_blocks([[True]], SimpleNamespace)
        with pytest.raises(ValueError, match="must be 2 times 2"):
            module.read_mask_blocks(2)
    finally:
        sys.path.remove(mindspeed_path)
        for name in [name for name in sys.modules if name.split(".")[0] == "mindspeed"]:
            del sys.modules[name]
