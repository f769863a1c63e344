"""npu_fusion_attention_v2: the same arithmetic, rotary parts, and its own limits."""

from typing import Any

import pytest
import torch
from torch import Tensor

from ascend_sim.kernels.attention_v2 import npu_fusion_attention_grad_v2, npu_fusion_attention_v2
from sim.kernels import dense_attention as dense
from sim.kernels.attention_case import Case, check
from sim.kernels.numeric import assert_near, draw

LENGTHS = [(3, 4), (5, 5), (1, 6)]
ENDS: dict[str, Any] = {"actual_seq_qlen": [3, 8, 9], "actual_seq_kvlen": [4, 9, 15]}


def check_v2(case: Case, *options: Any, **arguments: Any) -> tuple[Any, Any]:
    return check(
        case,
        *options,
        forward=npu_fusion_attention_v2,
        backward=npu_fusion_attention_grad_v2,
        **arguments,
    )


@pytest.mark.parametrize("layout", [*dense.LAYOUTS, "TND"])
def test_version_2_computes_what_version_1_does(layout: str) -> None:
    lengths = LENGTHS if layout == "TND" else [(4, 6)] * 2
    options = [{"kept": dense.kept_matrix(3, *length)} for length in lengths]
    mask = dense.compressed_mask(3)
    _, gradients = check_v2(Case(layout, lengths), options, atten_mask=mask, sparse_mode=3)
    assert [tuple(t.shape) for t in gradients[3:]] == [(0,)] * 4


def test_band_arguments_are_spelled_tokens() -> None:
    options = [{"kept": dense.kept_matrix(4, 5, 7, pre=2, next=1)}] * 2
    mask = dense.compressed_mask(4)
    check_v2(Case(), options, atten_mask=mask, sparse_mode=4, pre_tokens=2, next_tokens=1)


def rope_inputs() -> list[Tensor]:
    """query, key, value, query_rope, key_rope, dy: TND bfloat16, 4 heads over 2."""
    shapes = [(9, 4, 16), (15, 2, 16), (15, 2, 12), (9, 4, 8), (15, 2, 8), (9, 4, 12)]
    return [draw(*shape, dtype=torch.bfloat16, seed=s) for s, shape in enumerate(shapes)]


def test_rotary_parts_add_to_the_scores() -> None:
    query, key, value, query_rope, key_rope, dy = rope_inputs()
    mask = dense.compressed_mask(3)
    common: dict[str, Any] = {"atten_mask": mask, "sparse_mode": 3, **ENDS}
    ropes: dict[str, Any] = {"query_rope": query_rope, "key_rope": key_rope}
    out, top, total, *_ = npu_fusion_attention_v2(
        query, key, value, 4, "TND", scale=0.3, **ropes, **common
    )
    gradients = npu_fusion_attention_grad_v2(
        query,
        key,
        value,
        dy,
        4,
        "TND",
        scale_value=0.3,
        softmax_max=top,
        softmax_sum=total,
        attention_in=out,
        **ropes,
        **common,
    )
    leaves = [t.double().requires_grad_() for t in (query, key, value, query_rope, key_rope)]
    q, k, v, qr, kr = leaves
    parts, q0, k0 = [], 0, 0
    for queries, keys in LENGTHS:
        rows, columns = slice(q0, q0 + queries), slice(k0, k0 + keys)
        joined_q = torch.cat([q[rows], qr[rows]], -1).transpose(0, 1)
        joined_k = torch.cat([k[columns], kr[columns]], -1).transpose(0, 1)
        kept = dense.kept_matrix(3, queries, keys)
        values = v[columns].transpose(0, 1)
        parts.append(dense.attend(joined_q, joined_k, values, scale=0.3, kept=kept)[0])
        q0, k0 = q0 + queries, k0 + keys
    expected = dense.pack(parts, "TND")
    torch.autograd.backward(expected, dy.double())
    assert_near(out, expected.detach())
    found = (*gradients[:3], *gradients[4:6])
    for actual, leaf in zip(found, leaves, strict=True):
        assert leaf.grad is not None
        assert actual.shape == leaf.shape
        assert_near(actual, leaf.grad)


MASK = dense.compressed_mask(3)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"key_rope": None}, "go together"),
        ({"atten_mask": None, "sparse_mode": 0}, "need an atten_mask"),
        ({"keep_prob": 0.9}, "exclude pse, other pse types and dropout"),
        ({"pse_type": 0}, "exclude pse, other pse types and dropout"),
        ({"query_rope": torch.ones(9, 4, 6).bfloat16()}, "multiple of 8"),
        ({"query_rope": torch.ones(9, 4, 24).bfloat16()}, "at most that of query"),
        ({"query_rope": torch.ones(9, 2, 8).bfloat16()}, "the T and N of query"),
        ({"query_rope": torch.ones(9, 4, 8)}, "must be bfloat16"),
        ({"query_rope": torch.ones(9, 4, 16).bfloat16()}, "rope widths differ"),
    ],
)
def test_rotary_parts_outside_the_document_are_refused(change: dict[str, Any], rule: str) -> None:
    query, key, value, query_rope, key_rope, _ = rope_inputs()
    arguments: dict[str, Any] = {
        "query_rope": query_rope,
        "key_rope": key_rope,
        "atten_mask": MASK,
        "sparse_mode": 3,
        **ENDS,
        **change,
    }
    with pytest.raises(RuntimeError, match=rule):
        npu_fusion_attention_v2(query, key, value, 4, "TND", **arguments)


def test_rotary_parts_need_tnd() -> None:
    x = draw(1, 2, 3, 16, dtype=torch.bfloat16)
    with pytest.raises(RuntimeError, match="need layout TND"):
        npu_fusion_attention_v2(x, x, x, 2, "BNSD", query_rope=x, key_rope=x)


def test_mode_3_wants_no_more_queries_than_keys() -> None:
    case = Case("BNSD", [(7, 5)])
    with pytest.raises(RuntimeError, match="Sq <= Skv"):
        npu_fusion_attention_v2(*case.inputs(), 4, "BNSD", atten_mask=MASK, sparse_mode=3)
