"""Sparse modes of npu_fusion_attention against masks built score by score."""

from typing import Any

import pytest
import torch
from torch import Tensor

from sim.kernels.attention_case import Case, check, run
from sim.kernels.dense_attention import compressed_mask, kept_matrix

DENSE_LENGTHS = [(5, 5), (4, 7), (7, 4)]
TND_LENGTHS = [(3, 4), (2, 2), (4, 6)]
BANDS = [(2, 1), (0, 0), (3, -1), (-1, 4)]


def square(queries: int, keys: int) -> list[tuple[int, int]]:
    return [(queries, keys)] * 2


@pytest.mark.parametrize("mode", [2, 3])
@pytest.mark.parametrize(("queries", "keys"), DENSE_LENGTHS)
def test_causal_modes_start_from_their_corner(mode: int, queries: int, keys: int) -> None:
    kept = kept_matrix(mode, queries, keys)
    options = [{"kept": kept}] * 2
    mask = compressed_mask(mode)
    check(Case("BNSD", square(queries, keys)), options, atten_mask=mask, sparse_mode=mode)


@pytest.mark.parametrize(("pre", "next"), BANDS)
@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (4, 7)])
def test_band_counts_from_the_right_down_corner(
    pre: int, next: int, queries: int, keys: int
) -> None:
    options = [{"kept": kept_matrix(4, queries, keys, pre=pre, next=next)}] * 2
    check(
        Case("BNSD", square(queries, keys)),
        options,
        atten_mask=compressed_mask(4),
        sparse_mode=4,
        pre_tockens=pre,
        next_tockens=next,
    )


@pytest.mark.parametrize(
    ("queries", "keys", "prefix"), [(5, 5, [0, 4]), (4, 7, [3, 6]), (7, 4, [0, 4])]
)
def test_prefix_extends_the_triangle(queries: int, keys: int, prefix: list[int]) -> None:
    options = [{"kept": kept_matrix(6, queries, keys, prefix=n)} for n in prefix]
    case = Case("BNSD", square(queries, keys))
    check(case, options, atten_mask=compressed_mask(6), sparse_mode=6, prefix=prefix)
    full = ~torch.stack([option["kept"] for option in options]).unsqueeze(1)
    for mask in (full, full.expand(2, 4, queries, keys).contiguous()):
        check(case, options, atten_mask=mask, sparse_mode=5, prefix=prefix, inner_precise=2)


@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("shape", [(2, 4), (2, 1), (1, 1), ()])
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8])
def test_full_masks_take_every_documented_shape(
    mode: int, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    mask = torch.rand(*shape, 5, 7, generator=torch.Generator().manual_seed(3)) < 0.4
    mask[..., 2] = False
    every = mask.expand(2, 4, 5, 7)
    options = [{"kept": ~every[b]} for b in range(2)]
    check(Case(), options, atten_mask=mask.to(dtype), sparse_mode=mode)


def test_default_mode_takes_a_mask_inside_its_band() -> None:
    kept = kept_matrix(0, 5, 7, pre=1, next=2)
    arguments: dict[str, Any] = {"atten_mask": ~kept, "pre_tockens": 1, "next_tockens": 2}
    check(Case(), [{"kept": kept}] * 2, **arguments)
    arguments["next_tockens"] = 1
    with pytest.raises(RuntimeError, match="outside pre_tockens and next_tockens"):
        check(Case(), [{"kept": kept}] * 2, **arguments)


@pytest.mark.parametrize("mode", [2, 3, 4, 6, 7, 8])
@pytest.mark.parametrize("softmax_layout", ["", "TND"])
def test_varlen_modes_hold_for_each_sequence(mode: int, softmax_layout: str) -> None:
    band = {4: (2, 1), 7: (6, -1), 8: (4, 0)}.get(mode)
    prefix = [2, 1, 4]
    options = []
    for number, (queries, keys) in enumerate(TND_LENGTHS):
        pre, next = band or (10**9, 10**9)
        options.append(
            {
                "kept": kept_matrix(
                    mode,
                    queries,
                    keys,
                    pre=pre,
                    next=next,
                    prefix=prefix[number],
                    first=number == 0,
                    last=number == 2,
                )
            }
        )
    arguments: dict[str, Any] = {"atten_mask": compressed_mask(mode), "sparse_mode": mode}
    if band:
        arguments.update(pre_tockens=band[0], next_tockens=band[1])
    if mode == 6:
        arguments["prefix"] = prefix
    check(Case("TND", TND_LENGTHS, softmax_layout=softmax_layout), options, **arguments)


def test_varlen_full_mask_is_cut_to_each_sequence() -> None:
    mask = ~kept_matrix(0, 4, 6, pre=1, next=2)
    options = [{"kept": ~mask[:queries, :keys]} for queries, keys in TND_LENGTHS]
    check(Case("TND", TND_LENGTHS), options, atten_mask=mask, sparse_mode=1)


def test_split_of_a_causal_sequence_over_two_devices() -> None:
    """The document's example of mode 7: queries 3 + (4 cut in two), keys 3 + 6."""
    whole = kept_matrix(3, 4, 6)
    mask = compressed_mask(7)
    options: list[dict[str, Any]] = [{"kept": kept_matrix(3, 3, 3)}, {"kept": whole[:2]}]
    case = Case("TND", [(3, 3), (2, 6)])
    check(case, options, atten_mask=mask, sparse_mode=7, pre_tockens=6, next_tockens=-2)
    options = [{"kept": whole[2:]}, {"kept": kept_matrix(3, 5, 5)}]
    check(Case("TND", [(2, 6), (5, 5)]), options, atten_mask=mask, sparse_mode=3)


def test_split_of_a_left_up_sequence_over_two_devices() -> None:
    """The document's example of mode 8: queries 3 + (5 cut in 2 and 3), keys 3 + 4."""
    whole = kept_matrix(2, 5, 4)
    mask = compressed_mask(8)
    options: list[dict[str, Any]] = [{"kept": kept_matrix(2, 3, 3)}, {"kept": whole[:2]}]
    check(Case("TND", [(3, 3), (2, 4)]), options, atten_mask=mask, sparse_mode=2)
    options = [{"kept": whole[2:]}, {"kept": kept_matrix(2, 5, 5)}]
    case = Case("TND", [(3, 4), (5, 5)])
    check(case, options, atten_mask=mask, sparse_mode=8, pre_tockens=4, next_tockens=1)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8])
def test_a_compressed_mask_may_be_a_view(dtype: torch.dtype) -> None:
    storage = torch.zeros(2048 * 2049 + 3, dtype=dtype)
    shifted = storage[3:].narrow(0, 0, 2048 * 2048).view(2048, 2048)
    strided = storage[: 2048 * 2049].view(2048, 2049)[:, 1:]
    for view in (shifted, strided):
        view.copy_(compressed_mask(3))
        check(Case(), [{"kept": kept_matrix(3, 5, 7)}] * 2, atten_mask=view, sparse_mode=3)


def test_rows_that_see_nothing_give_zero_and_no_gradient() -> None:
    mask = torch.zeros(5, 7, dtype=torch.bool)
    mask[1] = True
    returned, gradients = check(Case(), [{"kept": ~mask}] * 2, atten_mask=mask, inner_precise=2)
    assert not returned[0][:, :, 1].any()
    assert not gradients[0][:, :, 1].any()


def test_default_mode_defines_the_blank_rows_its_band_foresees() -> None:
    kept = kept_matrix(0, 5, 7, pre=9, next=-2)
    assert not kept[0].any()
    band: dict[str, Any] = {"pre_tockens": 9, "next_tockens": -2}
    check(Case(), [{"kept": kept}] * 2, atten_mask=~kept, **band)


@pytest.mark.parametrize(
    ("mode", "lengths"), [(7, [(3, 4), (2, 5), (0, 3)]), (8, [(2, 0), (3, 4), (2, 5)])]
)
def test_the_band_of_a_cut_sequence_skips_empty_ones(
    mode: int, lengths: list[tuple[int, int]]
) -> None:
    options = []
    # In mode 7 a band of 0 would be the triangle of the other sequences.
    next = -1 if mode == 7 else 0
    for number, size in enumerate(lengths):
        of_band: dict[str, Any] = {
            "pre": 5,
            "next": next,
            "first": number == 1,
            "last": number == 1,
        }
        options.append({"kept": kept_matrix(mode, *size, **of_band)})
    check(
        Case("TND", lengths),
        options,
        atten_mask=compressed_mask(mode),
        sparse_mode=mode,
        pre_tockens=5,
        next_tockens=next,
    )


def make_mask(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.bool)


BAD_MASKS: list[tuple[dict[str, Any], str]] = [
    *[({"sparse_mode": mode}, "needs its atten_mask") for mode in range(1, 7)],
    ({"sparse_mode": 7, "atten_mask": compressed_mask(7)}, "sparse_mode must be one of"),
    ({"sparse_mode": -1}, "sparse_mode must be one of"),
    ({"sparse_mode": 2, "atten_mask": make_mask(5, 7)}, "compressed 2048 x 2048 mask"),
    ({"sparse_mode": 3, "atten_mask": make_mask(2048, 2048)}, "ones above the diagonal"),
    ({"sparse_mode": 3, "atten_mask": compressed_mask(3).t()}, "ones above the diagonal"),
    ({"sparse_mode": 6, "atten_mask": compressed_mask(3), "prefix": [2, 2]}, "3072 x 2048"),
    ({"sparse_mode": 6, "atten_mask": compressed_mask(6)}, "one length for each"),
    ({"sparse_mode": 6, "atten_mask": compressed_mask(6), "prefix": [1, 3]}, "prefix 1 must be in"),
    ({"sparse_mode": 6, "atten_mask": compressed_mask(6), "prefix": [3, 8]}, "prefix 8 must be in"),
    ({"atten_mask": make_mask(2, 1, 1, 7)}, "one of the shapes"),
    ({"atten_mask": make_mask(1, 4, 5, 7)}, "one of the shapes"),
    ({"atten_mask": make_mask(7, 5)}, "one of the shapes"),
    ({"atten_mask": make_mask(5, 7).float()}, "bool or uint8"),
    ({"atten_mask": ~make_mask(5, 7)}, "only with inner_precise=2"),
    ({"sparse_mode": 5, "atten_mask": make_mask(5, 7), "prefix": [2, 2]}, "one of the shapes"),
    (
        {"sparse_mode": 5, "atten_mask": make_mask(2, 1, 5, 7), "prefix": [2, 2]},
        "right-down triangle and the prefix",
    ),
    (
        {"sparse_mode": 4, "atten_mask": compressed_mask(4), "pre_tockens": -2, "next_tockens": 1},
        "must meet the score matrix",
    ),
    (
        {"sparse_mode": 4, "atten_mask": compressed_mask(4), "pre_tockens": 20, "next_tockens": -7},
        "must meet the score matrix",
    ),
]


@pytest.mark.parametrize(("arguments", "rule"), BAD_MASKS)
def test_masks_that_the_device_would_misread_are_refused(
    arguments: dict[str, Any], rule: str
) -> None:
    case = Case()
    with pytest.raises(RuntimeError, match=rule):
        run(case, **arguments)


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ({"sparse_mode": 5, "atten_mask": make_mask(3, 1, 4, 6)}, "sparse_mode must be one of"),
        ({"atten_mask": make_mask(3, 1, 4, 6)}, "one of the shapes"),
        ({"atten_mask": ~make_mask(4, 6), "inner_precise": 2}, "no fully masked row"),
        (
            {"sparse_mode": 7, "atten_mask": compressed_mask(7), "next_tockens": 1},
            "next_tockens <= 0",
        ),
        (
            {
                "sparse_mode": 7,
                "atten_mask": compressed_mask(7),
                "pre_tockens": 5,
                "next_tockens": 0,
            },
            "pre_tockens >= 6",
        ),
        (
            {"sparse_mode": 8, "atten_mask": compressed_mask(8), "pre_tockens": 3},
            "pre_tockens >= 4",
        ),
    ],
)
def test_varlen_masks_that_the_device_would_misread_are_refused(
    arguments: dict[str, Any], rule: str
) -> None:
    case = Case("TND", TND_LENGTHS)
    with pytest.raises(RuntimeError, match=rule):
        run(case, **arguments)
