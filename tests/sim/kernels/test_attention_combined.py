"""npu_fusion_attention in generated combinations of its arguments."""

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_sim import rng
from sim.kernels.attention_case import Case, check
from sim.kernels.dense_attention import LAYOUTS, compressed_mask, kept_matrix
from sim.kernels.numeric import DTYPES

SIZES = st.integers(1, 6)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    layout = draw(st.sampled_from([*LAYOUTS, "TND"]))
    batch = draw(st.integers(1, 3))
    if layout == "TND":
        lengths = draw(st.lists(st.tuples(SIZES, SIZES), min_size=batch, max_size=batch))
    else:
        lengths = [draw(st.tuples(SIZES, SIZES))] * batch
    kv_heads, width = draw(st.integers(1, 3)), draw(SIZES)
    return Case(
        layout,
        lengths,
        kv_heads * draw(st.integers(1, 3)),
        kv_heads,
        width,
        draw(st.integers(1, width)),
        draw(st.sampled_from(DTYPES)),
        softmax_layout=draw(st.sampled_from(["", "TND"])) if layout == "TND" else "",
    )


@st.composite
def maskings(draw: st.DrawFn, case: Case) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Arguments of a compressed mode, and what it keeps of each sequence."""
    modes = [None, 2, 3, 4, 6] + ([7, 8] if case.layout == "TND" else [])
    mode = draw(st.sampled_from(modes))
    if mode is None:
        return {}, [{} for _ in case.lengths]
    arguments: dict[str, Any] = {"atten_mask": compressed_mask(mode), "sparse_mode": mode}
    band: dict[str, Any] = {}
    if mode in (4, 7, 8):
        band = {"pre": 6, "next": draw(st.integers(-1, 0)) if mode == 7 else draw(SIZES)}
        if mode == 7 and case.lengths[-1][1] == 1:
            band["next"] = 0  # a band of -1 would miss a single key
        arguments.update(pre_tockens=band["pre"], next_tockens=band["next"])
    options = []
    prefixes = []
    for number, (queries, keys) in enumerate(case.lengths):
        prefixes.append(draw(st.integers(max(0, keys - queries), keys)))
        ends = {"first": number == 0, "last": number == len(case.lengths) - 1}
        kept = kept_matrix(mode, queries, keys, prefix=prefixes[-1], **band, **ends)
        options.append({"kept": kept})
    if mode == 6:
        arguments["prefix"] = prefixes
    return arguments, options


@settings(max_examples=60, deadline=None, database=None)
@given(data=st.data())
def test_any_combination_matches_dense_attention(data: st.DataObject) -> None:
    case = data.draw(cases())
    arguments, options = data.draw(maskings(case))
    shared = {}
    if data.draw(st.booleans()):
        arguments["sink"] = torch.linspace(-1, 1, case.heads)
        shared["sink"] = arguments["sink"].double()
    if data.draw(st.booleans()):
        arguments.update(keep_prob=0.75, seed=data.draw(st.integers(1, 99)), offset=4)
        sizes = [case.heads * queries * keys for queries, keys in case.lengths]
        flat = rng.keep_mask((sum(sizes),), 0.75, arguments["seed"], 4)
        parts = torch.split(flat, sizes)
        for option, part, length in zip(options, parts, case.lengths, strict=True):
            option["dropout"] = part.view(case.heads, *length).double() / 0.75
    check(case, options, shared=shared, **arguments)
