"""Position bias of npu_fusion_attention, types 0 to 3, against biases built score by score."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from ascend_sim.kernels.attention import npu_fusion_attention, npu_fusion_attention_grad
from ascend_sim.kernels.attention_v2 import npu_fusion_attention_grad_v2, npu_fusion_attention_v2
from sim.kernels.attention_case import Case, check, run
from sim.kernels.dense_attention import compressed_mask, kept_matrix
from sim.kernels.numeric import DTYPES, assert_near, draw

SHAPES = [(2, 4, 5, 7), (1, 4, 5, 7), (2, 4, 1, 7)]


def check_bias(
    case: Case, leaf: Tensor, options: Sequence[dict[str, Any]], kind: int, **arguments: Any
) -> Tensor:
    """Run version 2 with a bias; compare its gradient with that of `leaf`; return it."""
    _, gradients = check(
        case,
        [{"bias_before_scale": kind == 1, **option} for option in options],
        forward=npu_fusion_attention_v2,
        backward=npu_fusion_attention_grad_v2,
        pse_type=kind,
        **arguments,
    )
    assert leaf.grad is not None
    assert_near(gradients[3], leaf.grad, dtype=case.dtype)
    found: Tensor = gradients[3]
    return found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("shape", SHAPES)
def test_given_bias_and_its_gradient(shape: tuple[int, ...], kind: int, dtype: torch.dtype) -> None:
    pse = draw(*shape, dtype=dtype, seed=9)
    leaf = pse.double().requires_grad_()
    whole = leaf.expand(2, 4, 5, 7)
    case = Case(dtype=dtype)
    found = check_bias(case, leaf, [{"bias": whole[b]} for b in range(2)], kind, pse=pse)
    assert found.dtype == dtype
    assert found.shape == shape


def test_version_1_adds_the_bias_before_the_scale() -> None:
    pse = draw(2, 4, 5, 7)
    check(Case(), [{"bias": pse[b].double()} for b in range(2)], pse=pse)


def alibi(slopes: Tensor, queries: int, keys: int, shift: int = 0, power: float = 1.0) -> Tensor:
    """-slope * |j - i + shift| ** power, [N, queries, keys] float64."""
    distance = torch.empty(queries, keys, dtype=torch.float64)
    for i in range(queries):
        for j in range(keys):
            distance[i, j] = abs(j - i + shift) ** power
    return -slopes.double().view(-1, 1, 1) * distance


@pytest.mark.parametrize(("kind", "power"), [(2, 1.0), (3, 0.5)])
@pytest.mark.parametrize(("q_start", "kv_start"), [(None, None), ([3], [0]), ([2], [9])])
@pytest.mark.parametrize("per_batch", [False, True])
def test_alibi_is_made_inside_from_slopes(
    kind: int, power: float, q_start: list[int] | None, kv_start: list[int] | None, per_batch: bool
) -> None:
    slopes = torch.rand(2, 4, generator=torch.Generator().manual_seed(1))
    shift = (kv_start or [0])[0] - (q_start or [0])[0]
    options = [
        {
            "bias": alibi(slopes[b if per_batch else 0], 6, 6, shift, power),
            "bias_before_scale": False,
        }
        for b in range(2)
    ]
    check(
        Case("BSH", [(6, 6)] * 2, dtype=torch.bfloat16),
        options,
        forward=npu_fusion_attention_v2,
        backward=npu_fusion_attention_grad_v2,
        pse=slopes if per_batch else slopes[0],
        pse_type=kind,
        q_start_idx=q_start,
        kv_start_idx=kv_start,
    )


@pytest.mark.parametrize("batch", [1, 2])
def test_causal_alibi_needs_only_its_last_1024_rows(batch: int) -> None:
    length = 1030
    case = Case("BNSD", [(length, length)] * 2, heads=1, kv_heads=1, width=2, value_width=2)
    position = torch.arange(length, dtype=torch.float64)
    distance = (position - position.unsqueeze(1)).abs()
    biases = [-(0.01 * (1 + b % batch)) * distance for b in range(2)]
    rows = torch.stack(biases[:batch]).unsqueeze(1)[:, :, -1024:].float()
    kept = torch.tril(torch.ones(length, length, dtype=torch.bool))
    options = [{"bias": bias, "kept": kept} for bias in biases]
    mask = compressed_mask(2)
    _, gradients = check(case, options, pse=rows, atten_mask=mask, sparse_mode=2)
    assert gradients[3].shape == rows.shape


def test_compressed_alibi_serves_varlen_sequences() -> None:
    lengths = [(3, 3), (6, 6)]
    slopes = torch.tensor([0.3, 0.1, 0.7, 0.2])
    whole = alibi(slopes, 1024, 6, shift=1024 - 6)
    case = Case("TND", lengths)
    options = [{"bias": alibi(slopes, n, n), "kept": kept_matrix(3, n, n)} for n, _ in lengths]
    check(
        case, options, pse=whole.unsqueeze(0).float(), atten_mask=compressed_mask(3), sparse_mode=3
    )


def test_gradient_of_a_compressed_bias_sums_over_its_diagonal() -> None:
    """Every score whose bias a compressed entry supplies adds to that entry's gradient."""
    length, heads = 1026, 1
    query, key, value, dy = (draw(1, heads, length, 2, seed=s) for s in range(4))
    pse = torch.zeros(1, heads, 1024, length)
    arguments: dict[str, Any] = {"atten_mask": compressed_mask(2), "sparse_mode": 2}
    out, top, total, *_ = npu_fusion_attention(query, key, value, heads, "BNSD", pse, **arguments)
    saved: dict[str, Any] = {"softmax_max": top, "softmax_sum": total, "attention_in": out}
    common: dict[str, Any] = {**arguments, **saved}
    full = torch.zeros(1, heads, length, length)
    d_full = npu_fusion_attention_grad(query, key, value, dy, heads, "BNSD", pse=full, **common)[3]
    d_short = npu_fusion_attention_grad(query, key, value, dy, heads, "BNSD", pse=pse, **common)[3]
    expected = d_full[0, 0, 2:].clone()
    for i in range(2):
        expected[0, 2 - i : 2 - i + i + 1] += d_full[0, 0, i, : i + 1]
    assert_near(d_short[0, 0], expected.double())


BAD: list[tuple[dict[str, Any], str]] = [
    ({"pse_type": 4}, "pse_type must be 0 to 3"),
    ({"pse_type": 2}, "needs its slopes"),
    ({"pse": torch.ones(2, 4, 5, 7).half()}, "pse must be torch.float32"),
    ({"pse": torch.ones(2, 1, 5, 7)}, "one of the shapes"),
    ({"pse": torch.ones(1, 4, 1, 7)}, "one of the shapes"),
    ({"pse": torch.ones(5, 7)}, "one of the shapes"),
    ({"pse": torch.ones(4).half(), "pse_type": 2}, "slopes must be float32"),
    ({"pse": torch.ones(3), "pse_type": 3}, "one of the shapes"),
    ({"pse": torch.ones(4), "pse_type": 2}, "as many queries as keys"),
]


@pytest.mark.parametrize(("arguments", "rule"), BAD)
def test_a_bias_that_does_not_fit_is_refused(arguments: dict[str, Any], rule: str) -> None:
    case = Case()
    with pytest.raises(RuntimeError, match=rule):
        run(case, forward=npu_fusion_attention_v2, **arguments)


def test_start_indices_hold_one_entry() -> None:
    case = Case("BNSD", [(5, 5)])
    with pytest.raises(RuntimeError, match="q_start_idx takes one entry"):
        npu_fusion_attention_v2(
            *case.inputs(), 4, "BNSD", pse=torch.ones(4), pse_type=2, q_start_idx=[1, 2]
        )


def test_varlen_takes_no_full_bias_and_none_beside_an_empty_sequence() -> None:
    case = Case("TND", [(3, 3), (6, 6)])
    with pytest.raises(RuntimeError, match="TND takes pse only as the last 1024 rows"):
        run(case, pse=torch.ones(2, 4, 6, 6))
    case = Case("TND", [(3, 3), (0, 0)])
    arguments: dict[str, Any] = {"actual_seq_qlen": [3, 3, 3], "actual_seq_kvlen": [3, 3, 3]}
    with pytest.raises(RuntimeError, match="empty sequence"):
        run(case, **arguments, pse=torch.ones(1, 4, 1024, 3))


@pytest.mark.parametrize("mode", [7, 8])
def test_cut_sequences_take_no_bias(mode: int) -> None:
    case = Case("TND", [(3, 3), (6, 6)])
    arguments: dict[str, Any] = {
        "atten_mask": compressed_mask(mode),
        "sparse_mode": mode,
        "next_tockens": 0,
    }
    with pytest.raises(RuntimeError, match=f"sparse_mode {mode} takes no pse"):
        run(case, **arguments, pse=torch.ones(1))
