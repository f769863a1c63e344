"""The rotary kernels against rotation by complex multiplication in float64."""

import pytest
import torch
from torch import Tensor

from ascend_sim.kernels import rope
from sim.kernels.numeric import DTYPES, assert_near, draw, gradients

Shape = tuple[int, ...]

# (x, cos): every documented broadcast form, awkward sizes.
HALF = [
    ((2, 3, 5, 6), (1, 1, 5, 6)),
    ((2, 3, 5, 6), (2, 1, 5, 6)),
    ((2, 3, 5, 6), (2, 3, 5, 6)),
    ((2, 7, 3, 10), (1, 7, 1, 10)),
    ((7, 2, 3, 2), (7, 1, 1, 2)),
    ((1, 1, 1, 4), (1, 1, 1, 4)),
]
INTERLEAVE = [
    ((2, 3, 5, 6), (1, 1, 5, 6)),
    ((2, 7, 3, 10), (1, 7, 1, 10)),
    ((7, 2, 3, 2), (7, 1, 1, 2)),
]
CASES = [("half", *shapes) for shapes in HALF] + [("interleave", *shapes) for shapes in INTERLEAVE]


def pair_positions(width: int, mode: str) -> list[tuple[int, int]]:
    """The coordinates that turn together."""
    half = width // 2
    return [(i, i + half) if mode == "half" else (2 * i, 2 * i + 1) for i in range(half)]


def rotation_matrix(width: int, mode: str) -> Tensor:
    """M with rotate(x) = x @ M, set element by element: (a, b) becomes (-b, a)."""
    matrix = torch.zeros(width, width, dtype=torch.float64)
    for a, b in pair_positions(width, mode):
        matrix[b, a] = -1.0
        matrix[a, b] = 1.0
    return matrix


def rotary(x: Tensor, cos: Tensor, sin: Tensor, mode: str) -> Tensor:
    return x * cos + (x @ rotation_matrix(x.shape[-1], mode)) * sin


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("mode", "shape", "table"), CASES)
def test_rotary_mul_and_its_gradient(
    mode: str, shape: Shape, table: Shape, dtype: torch.dtype
) -> None:
    x, g = draw(*shape, dtype=dtype), draw(*shape, dtype=dtype, seed=1)
    cos, sin = draw(*table, dtype=dtype, seed=2), draw(*table, dtype=dtype, seed=3)
    y = rope.npu_rotary_mul(x, cos, sin, mode)
    assert y.dtype == dtype
    assert_near(y, rotary(x.double(), cos.double(), sin.double(), mode))
    actual = rope.npu_rotary_mul_backward(g, x, cos, sin, mode)
    expected = gradients(lambda a, b, c: rotary(a, b, c, mode), [x, cos, sin], g)
    for found, wanted in zip(actual, expected, strict=True):
        assert found.dtype == dtype
        assert_near(found, wanted)


@pytest.mark.parametrize("mode", ["half", "interleave"])
def test_rotary_mul_turns_pairs_by_the_angle(mode: str) -> None:
    width, length = 8, 5
    angle = torch.rand(length, width // 2, dtype=torch.float64) * 6
    pairs = pair_positions(width, mode)
    full = torch.empty(length, width, dtype=torch.float64)
    for i, (a, b) in enumerate(pairs):
        full[:, a] = full[:, b] = angle[:, i]
    x = draw(1, 2, length, width)
    table = full.float().view(1, 1, length, width)
    y = rope.npu_rotary_mul(x, table.cos(), table.sin(), mode).double()
    for i, (a, b) in enumerate(pairs):
        turned = torch.complex(x[..., a].double(), x[..., b].double()) * torch.exp(1j * angle[:, i])
        assert_near(y[..., a].float(), turned.real)
        assert_near(y[..., b].float(), turned.imag)


def test_rotary_mul_casts_float32_tables_to_the_input_dtype() -> None:
    x, table = draw(2, 3, 5, 6, dtype=torch.bfloat16), draw(1, 1, 5, 6)
    rounded = table.to(torch.bfloat16)
    wanted = rope.npu_rotary_mul(x, rounded, rounded)
    assert torch.equal(rope.npu_rotary_mul(x, table, table), wanted)
    grads = rope.npu_rotary_mul_backward(x, x, table, table)
    assert {grad.dtype for grad in grads} == {torch.bfloat16}


@pytest.mark.parametrize("mode", ["half", "interleave"])
def test_rotary_mul_takes_the_rotation_as_a_matrix(mode: str) -> None:
    x, cos, sin = draw(2, 3, 5, 6), draw(1, 1, 5, 6), draw(1, 1, 5, 6, seed=1)
    matrix = rotation_matrix(6, mode).float()
    by_matrix = rope.npu_rotary_mul(x, cos, sin, "half", matrix)
    assert_near(by_matrix, rope.npu_rotary_mul(x, cos, sin, mode).double())


@pytest.mark.parametrize(
    ("shape", "table", "mode", "rule"),
    [
        ((2, 3, 5, 6), (1, 1, 5, 6), "quarter", "rotary_mode 'quarter' is not supported"),
        ((2, 3, 5, 7), (1, 1, 5, 7), "half", "must be even and below 896"),
        ((1, 1, 2, 896), (1, 1, 2, 896), "half", "must be even and below 896"),
        ((2, 3, 5, 6), (1, 1, 5, 3), "half", "full head width"),
        ((2, 3, 5, 6), (1, 1, 4, 6), "half", "does not broadcast"),
        ((2, 3, 5, 6), (2, 1, 5, 6), "interleave", "11SD, 1S1D or S11D"),
        ((40, 25, 2, 2), (1, 1, 2, 2), "interleave", "below 1000"),
        ((1000, 1, 2, 2), (1, 1, 2, 2), "half", "below 1000"),
        ((2, 5, 6), (1, 5, 6), "half", "4 dims"),
    ],
)
def test_rotary_mul_refuses_what_the_document_excludes(
    shape: Shape, table: Shape, mode: str, rule: str
) -> None:
    with pytest.raises(RuntimeError, match=rule):
        rope.npu_rotary_mul(torch.ones(shape), torch.ones(table), torch.ones(table), mode)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["BSND", "TND"])
@pytest.mark.parametrize("width", [64, 128])
def test_apply_rotary_pos_emb_writes_query_and_key(
    layout: str, width: int, dtype: torch.dtype
) -> None:
    tokens = (2, 3) if layout == "BSND" else (5,)
    query, key = draw(*tokens, 4, 128, dtype=dtype), draw(*tokens, 2, 128, dtype=dtype, seed=1)
    cos, sin = (draw(*tokens, 1, width, dtype=dtype, seed=s) for s in (2, 3))
    expected = []
    for x in (query.double(), key.double()):
        turned = rotary(x[..., :width], cos.double(), sin.double(), "half")
        expected.append(torch.cat([turned, x[..., width:]], -1))
    out = rope.npu_apply_rotary_pos_emb(query, key, cos, sin, layout)
    assert out[0] is query
    assert out[1] is key
    for found, wanted in zip(out, expected, strict=True):
        assert_near(found, wanted)


@pytest.mark.parametrize(
    ("query", "cos", "layout", "mode", "rule"),
    [
        ((2, 3, 4, 64), (2, 3, 1, 64), "SBND", "half", "BSND or TND"),
        ((2, 3, 4, 64), (2, 3, 1, 64), "BSND", "interleave", "must be 'half'"),
        ((2, 3, 4, 96), (2, 3, 1, 96), "BSND", "half", "64 or 128"),
        ((2, 3, 4, 64), (1, 3, 1, 64), "BSND", "half", "same B and S"),
        ((2, 3, 4, 64), (2, 3, 4, 64), "BSND", "half", "head dim of cos"),
        ((2, 3, 4, 64), (2, 3, 1, 128), "BSND", "half", "not below that of cos"),
        ((3, 4, 64), (3, 1, 64), "BSND", "half", "4 dims"),
    ],
)
def test_apply_rotary_pos_emb_refuses_what_the_document_excludes(
    query: Shape, cos: Shape, layout: str, mode: str, rule: str
) -> None:
    q, table = torch.ones(query), torch.ones(cos)
    with pytest.raises(RuntimeError, match=rule):
        rope.npu_apply_rotary_pos_emb(q, q.clone(), table, table, layout, mode)
