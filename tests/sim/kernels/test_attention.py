"""npu_fusion_attention against dense float64 attention: layouts, heads, sinks, dropout."""

from typing import Any

import pytest
import torch
from torch import Tensor

from ascend_sim import rng
from ascend_sim.kernels import attention, attention_core, attention_v3
from ascend_sim.kernels.dropout import npu_dropout_gen_mask
from ascend_sim.kernels.dropout_mask import pack_bits
from sim.kernels.attention_case import Case, check, run
from sim.kernels.dense_attention import LAYOUTS, compressed_mask
from sim.kernels.numeric import DTYPES, assert_near, draw

TND_LENGTHS = [(3, 4), (5, 2), (1, 6)]


def lengths(layout: str) -> list[tuple[int, int]]:
    return TND_LENGTHS if layout == "TND" else [(5, 7), (5, 7)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", [*LAYOUTS, "TND"])
def test_every_layout_and_dtype(layout: str, dtype: torch.dtype) -> None:
    returned, _ = check(Case(layout, lengths(layout), dtype=dtype))
    _, _, _, reserved, seed, offset, numels = returned
    assert reserved.shape == (0,)
    assert reserved.dtype == dtype
    assert (seed, offset) == (0, 0)
    assert numels == 4 * sum(queries * keys for queries, keys in lengths(layout))


@pytest.mark.parametrize("layout", [*LAYOUTS, "TND"])
@pytest.mark.parametrize(("heads", "kv_heads"), [(3, 3), (6, 2), (4, 1), (1, 1)])
def test_grouped_heads_and_a_narrower_value(layout: str, heads: int, kv_heads: int) -> None:
    check(Case(layout, lengths(layout), heads, kv_heads, width=5, value_width=3))


@pytest.mark.parametrize("softmax_layout", ["", "TND"])
def test_varlen_statistics_lie_head_by_head_unless_asked(softmax_layout: str) -> None:
    check(Case("TND", TND_LENGTHS, softmax_layout=softmax_layout))


def test_an_empty_varlen_sequence_is_skipped() -> None:
    check(Case("TND", [(2, 2), (0, 0), (3, 4)]))


def test_trailing_zero_lengths_are_ignored() -> None:
    case = Case("TND", [(2, 3), (4, 2)])
    query, key, value = case.inputs()
    arguments = case.arguments()
    plain = attention.npu_fusion_attention(query, key, value, **arguments)
    for name in ("actual_seq_qlen", "actual_seq_kvlen"):
        arguments[name] = [*arguments[name], 0, 0]
    padded = torch.cat([query, draw(2, *query.shape[1:])])
    longer = attention.npu_fusion_attention(padded, key, value, **arguments)
    assert torch.equal(longer[0][:6], plain[0])
    assert not longer[0][6:].any()
    assert longer[6] == plain[6]


@pytest.mark.parametrize("layout", ["BNSD", "TND"])
def test_sink_takes_weight_and_gets_a_gradient(layout: str) -> None:
    sink = torch.linspace(-1, 2, 4)
    leaf = sink.double().requires_grad_()
    _, gradients = check(Case(layout, lengths(layout)), shared={"sink": leaf}, sink=sink)
    assert leaf.grad is not None
    assert gradients[4].dtype == torch.float32
    assert_near(gradients[4], leaf.grad)


def dropout_factors(case: Case, keep_prob: float, seed: int, offset: int) -> list[Tensor]:
    """The factor on every softmax weight, one [N, Sq, Skv] a sequence."""
    sizes = [case.heads * queries * keys for queries, keys in case.lengths]
    flat = rng.keep_mask((sum(sizes),), float(torch.tensor(keep_prob)), seed, offset)
    shapes = [(case.heads, *length) for length in case.lengths]
    parts = zip(torch.split(flat, sizes), shapes, strict=True)
    return [part.view(shape).double() / keep_prob for part, shape in parts]


@pytest.mark.parametrize("layout", [*LAYOUTS, "TND"])
def test_dropout_uses_one_mask_forward_and_backward(layout: str) -> None:
    case = Case(layout, lengths(layout))
    factors = dropout_factors(case, 0.7, 11, 3)
    assert all(0 < int((factor == 0).sum()) < factor.numel() for factor in factors)
    options = [{"dropout": factor} for factor in factors]
    returned, _ = check(case, options, keep_prob=0.7, seed=11, offset=3)
    assert returned[4:6] == (11, 3)


def test_dropout_draws_when_no_seed_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ascend_sim.kernels.attention_call.draw_seed", lambda: (5, 8))
    case = Case()
    options = [{"dropout": factor} for factor in dropout_factors(case, 0.5, 5, 8)]
    returned, _ = check(case, options, keep_prob=0.5)
    assert returned[4:6] == (5, 8)


def test_dropout_mask_from_outside_must_belong_to_seed_and_offset() -> None:
    case = Case()
    size = [2, 4, 5, 7]
    mask = npu_dropout_gen_mask(torch.ones(1), size, 1 - 0.9, 42, 0)
    options = [{"dropout": factor} for factor in dropout_factors(case, 0.9, 42, 0)]
    check(case, options, keep_prob=0.9, dropout_mask=mask, seed=42, offset=0)
    other = pack_bits(torch.ones(size, dtype=torch.bool))
    with pytest.raises(RuntimeError, match="_npu_dropout_gen_mask makes of seed and offset"):
        check(case, options, keep_prob=0.9, dropout_mask=other, seed=42, offset=0)


def test_version_3_is_version_1_with_tensors() -> None:
    case = Case("TND", TND_LENGTHS)
    (query, key, value), arguments = case.inputs(), case.arguments()
    mask = compressed_mask(3)
    common: dict[str, Any] = {"atten_mask": mask, "sparse_mode": 3}
    first = attention.npu_fusion_attention(query, key, value, **arguments, **common)
    tensors: dict[str, Any] = {
        name: torch.tensor(value) if name.startswith("actual") else value
        for name, value in arguments.items()
    }
    third = attention_v3.npu_fusion_attention_v3(query, key, value, **tensors, **common)
    torch.testing.assert_close(third[:3], first[:3], rtol=0, atol=0)
    assert [t.tolist() for t in third[4:]] == [[0], [0]]
    saved: dict[str, Any] = {
        "softmax_max": first[1],
        "softmax_sum": first[2],
        "attention_in": first[0],
    }
    dy = draw(*first[0].shape)
    expected = attention.npu_fusion_attention_grad(
        query, key, value, dy, **arguments, **common, **saved
    )
    found = attention_v3.npu_fusion_attention_grad_v3(
        query, key, value, dy, **tensors, **common, **saved, seed=third[4], offset=third[5]
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("elements", [1, 20, 100])
def test_blocks_of_any_size_give_the_same(elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_core, "_BLOCK_ELEMENTS", elements)
    case = Case()
    options = [{"dropout": factor} for factor in dropout_factors(case, 0.7, 11, 3)]
    check(case, options, keep_prob=0.7, seed=11, offset=3)


def test_a_default_device_of_the_caller_does_not_leak_in() -> None:
    case = Case()
    mask, pse = compressed_mask(3), draw(2, 4, 5, 7)
    inputs = case.inputs()
    with torch.device("meta"):
        out, top, total, *_ = attention.npu_fusion_attention(
            *inputs, 4, "BNSD", pse=pse, atten_mask=mask, sparse_mode=3
        )
        gradients = attention.npu_fusion_attention_grad(
            *inputs,
            out,
            4,
            "BNSD",
            pse=pse,
            atten_mask=mask,
            sparse_mode=3,
            softmax_max=top,
            softmax_sum=total,
            attention_in=out,
        )
    assert {t.device.type for t in (out, top, total, *gradients)} == {"cpu"}


def test_gradients_that_were_not_asked_for_are_empty() -> None:
    _, gradients = check(Case(dtype=torch.bfloat16))
    assert [t.shape for t in gradients[3:]] == [(0,), (0,)]
    assert [t.dtype for t in gradients[3:]] == [torch.bfloat16, torch.float32]


BAD_CALLS = [
    ({"input_layout": "NBSD"}, "not a layout"),
    ({"input_layout": "tnd"}, "upper case"),
    ({"input_layout": "BSH"}, "query must have 3 dims"),
    ({"head_num": 3}, "must be the number of query heads"),
    ({"head_num": 0}, "head_num must be positive"),
    ({"keep_prob": 0.0}, r"keep_prob must be in \(0, 1\]"),
    ({"keep_prob": 1.5}, r"keep_prob must be in \(0, 1\]"),
    ({"padding_mask": torch.ones(1)}, "padding_mask is reserved"),
    ({"softmax_layout": "TND"}, "softmax_layout"),
    ({"inner_precise": 3}, "inner_precise"),
    ({"sink": torch.ones(4).half()}, "sink must be float32"),
    ({"sink": torch.ones(3)}, "sink must be float32"),
]


@pytest.mark.parametrize(("change", "rule"), BAD_CALLS)
def test_arguments_out_of_range_are_refused(change: dict[str, Any], rule: str) -> None:
    case = Case()
    with pytest.raises(RuntimeError, match=rule):
        run(case, **change)


BAD_TENSORS = [
    ((2, 4, 5, 6), (2, 3, 7, 6), (2, 3, 7, 6), "multiple of 3 key heads"),
    ((2, 4, 5, 6), (2, 2, 7, 8), (2, 2, 7, 8), "query and key widths differ"),
    ((2, 4, 5, 6), (2, 2, 7, 6), (2, 2, 7, 8), "the value width 8"),
    ((2, 4, 5, 6), (2, 2, 7, 6), (2, 1, 7, 6), "same heads"),
    ((2, 4, 5, 6), (2, 2, 7, 6), (2, 2, 8, 6), "key and value lengths differ"),
    ((2, 4, 5, 6), (3, 2, 7, 6), (3, 2, 7, 6), "batch sizes differ"),
    ((1, 4, 2, 769), (1, 4, 2, 769), (1, 4, 2, 769), "over 768"),
]


@pytest.mark.parametrize(("query", "key", "value", "rule"), BAD_TENSORS)
def test_sizes_that_do_not_fit_are_refused(
    query: tuple[int, ...], key: tuple[int, ...], value: tuple[int, ...], rule: str
) -> None:
    with pytest.raises(RuntimeError, match=rule):
        attention.npu_fusion_attention(
            torch.ones(query), torch.ones(key), torch.ones(value), 4, "BNSD"
        )


def test_mixed_and_double_dtypes_are_refused() -> None:
    query, key, value = Case().inputs()
    with pytest.raises(RuntimeError, match="must have one dtype"):
        attention.npu_fusion_attention(query, key.half(), value, 4, "BNSD")
    with pytest.raises(RuntimeError, match="float16, bfloat16 or float32"):
        attention.npu_fusion_attention(query.double(), key.double(), value.double(), 4, "BNSD")


@pytest.mark.parametrize(
    ("query_ends", "key_ends", "rule"),
    [
        (None, None, "TND needs actual_seq_qlen"),
        ([3, 8, 9], [4, 12], "of one length"),
        ([0, 3, 8, 9], [0, 4, 6, 12], "without a leading 0"),
        ([3, 2, 9], [4, 6, 12], "cumulative"),
        ([3, 8, 10], [4, 6, 12], "beyond the tokens"),
    ],
)
def test_varlen_ends_are_checked(
    query_ends: list[int] | None, key_ends: list[int] | None, rule: str
) -> None:
    case = Case("TND", TND_LENGTHS)
    with pytest.raises(RuntimeError, match=rule):
        attention.npu_fusion_attention(
            *case.inputs(), 4, "TND", actual_seq_qlen=query_ends, actual_seq_kvlen=key_ends
        )


def test_gradient_needs_what_the_forward_saved() -> None:
    case = Case()
    (query, key, value), dy = case.inputs(), draw(2, 4, 5, 6)
    out, top, total, *_ = attention.npu_fusion_attention(query, key, value, **case.arguments())
    with pytest.raises(RuntimeError, match="of the forward are needed"):
        attention.npu_fusion_attention_grad(
            query, key, value, dy, **case.arguments(), softmax_max=top
        )
    saved: dict[str, Any] = {"softmax_max": top, "softmax_sum": total, "attention_in": out}
    with pytest.raises(RuntimeError, match="dy must have shape"):
        attention.npu_fusion_attention_grad(query, key, value, dy[:1], **case.arguments(), **saved)
    saved["softmax_max"] = top[..., :1]
    with pytest.raises(RuntimeError, match="softmax_max must be float32 of shape"):
        attention.npu_fusion_attention_grad(query, key, value, dy, **case.arguments(), **saved)
