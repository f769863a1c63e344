"""Shape and index operators against loops over elements."""

import itertools

import pytest
import torch

from ascend_sim.kernels import index, transpose


@pytest.mark.parametrize(
    ("perm", "shape", "first", "result"),
    [
        ((0, 2, 1, 3), (2, 4, 18), True, (2, 4, 18)),
        ((0, 2, 1), (2, 12, 6), False, (2, 6, 12)),
        ((3, 1, 0, 2), (-1, 6), True, (24, 6)),
        ((2, 0, 1), (4, 6, 6), False, (6, 4, 6)),
    ],
)
def test_confusion_transpose_and_its_gradient(
    perm: tuple[int, ...], shape: tuple[int, ...], first: bool, result: tuple[int, ...]
) -> None:
    x = torch.arange(144.0).reshape(2, 3, 4, 6)
    out = transpose.confusion_transpose(x, list(perm), list(shape), first)
    assert out.shape == result
    assert out.is_contiguous()
    source = x.permute(perm) if first else x.reshape(shape)
    if first:
        assert torch.equal(out.flatten(), source.flatten())
    else:
        for place in itertools.product(*map(range, result)):
            origin = [0] * len(perm)
            for position, dim in enumerate(perm):
                origin[dim] = place[position]
            assert out[place] == source[tuple(origin)]
    back = transpose.confusion_transpose_backward(out, list(perm), list(x.shape), not first)
    assert torch.equal(back, x)


def test_transpose_reshape_slice_broadcast_and_sort_copy() -> None:
    x = torch.randn(2, 3, 5)
    outs = [
        (transpose.transpose(x, [2, 0, 1]), x.permute(2, 0, 1)),
        (transpose.reshape(x, [5, 6]), x.reshape(5, 6)),
        (transpose.slice_tensor(x, [1, 0, 2], [1, 2, 3]), x[1:2, 0:2, 2:5]),
        (transpose.broadcast(x[:1], [4, 3, 5]), torch.cat([x[:1]] * 4)),
        (transpose.sort_v2(x), torch.tensor([[sorted(r) for r in m] for m in x.tolist()])),
    ]
    for actual, expected in outs:
        assert torch.equal(actual, expected)
        assert actual.is_contiguous()
        assert actual.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
    down = transpose.sort_v2(x, 2, True)
    assert down.tolist() == [[sorted(row, reverse=True) for row in matrix] for matrix in x.tolist()]


def test_out_forms_write_and_resize_their_output() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    out = torch.empty(0)
    assert transpose.transpose_out(x, [1, 0], out=out) is out
    assert torch.equal(out, x.t())
    assert transpose.reshape_out(x, [6], out=out).tolist() == [0, 1, 2, 3, 4, 5]
    assert transpose.slice_out(x, [1, 1], [1, 2], out=out).tolist() == [[4, 5]]
    assert transpose.broadcast_out(x[:1], [2, 3], out=out).tolist() == [[0, 1, 2], [0, 1, 2]]
    assert transpose.sort_v2_out(x, -1, True, out=out).tolist() == [[2, 1, 0], [5, 4, 3]]
    with pytest.raises(RuntimeError, match="out must have the dtype"):
        transpose.transpose_out(x, [1, 0], out=torch.empty(0, dtype=torch.float16))


def test_one_fills_in_place() -> None:
    x = torch.zeros(2, 2, dtype=torch.bfloat16)
    assert transpose.one_(x) is x
    assert x.tolist() == [[1.0, 1.0], [1.0, 1.0]]


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_scatter_nd_update_writes_one_block_per_index(index_dtype: torch.dtype, depth: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 5, 6)
    places = [(3, 0, 5), (0, 4, 1), (1, 2, 3)]
    indices = torch.tensor([place[:depth] for place in places], dtype=index_dtype)
    updates = torch.randn(3, *x.shape[depth:])
    expected = x.clone()
    for place, update in zip(places, updates, strict=True):
        expected[place[:depth]] = update
    before = x.clone()
    assert torch.equal(index.scatter_nd_update(x, indices, updates), expected)
    assert torch.equal(x, before)
    assert index.scatter_nd_update_(x, indices, updates) is x
    assert torch.equal(x, expected)


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("least", [False, True])
def test_extremes_and_their_gradients(keepdim: bool, dim: int, least: bool) -> None:
    torch.manual_seed(1)
    x = torch.randn(3, 4, 2)
    call = index.min_dim if least else index.max_dim
    values, places = call(x, dim, keepdim)
    leaf = x.double().requires_grad_()
    expected = (-leaf).amax(dim, keepdim).neg() if least else leaf.amax(dim, keepdim)
    assert torch.equal(values.double(), expected.detach())
    assert places.dtype == torch.int32
    grad = torch.randn(values.shape)
    torch.autograd.backward(expected, grad.double())
    back = index.min_backward if least else index.max_backward
    assert leaf.grad is not None
    assert torch.equal(back(grad, dim, places, list(x.shape), keepdim).double(), leaf.grad)


def test_gather_backward_adds_repeated_places() -> None:
    leaf = torch.zeros(3, 4, dtype=torch.float64, requires_grad=True)
    places = torch.tensor([[0, 1], [0, 3], [2, 2]])
    grad = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    torch.autograd.backward(leaf.gather(1, places), grad.double())
    assert leaf.grad is not None
    out = index.gather_backward(grad.half(), [3, 4], 1, places, False)
    assert out.dtype == torch.float16
    assert torch.equal(out.double(), leaf.grad)


@pytest.mark.parametrize(
    ("call", "rule"),
    [
        (lambda x: transpose.transpose(x, [0, 0]), "must name each of 2 dimensions"),
        (lambda x: transpose.confusion_transpose(x, [0], [6], True), "must name each of 2"),
        (lambda x: transpose.slice_tensor(x, [0, 2], [1, 2]), "not inside the tensor"),
        (lambda x: transpose.slice_tensor(x, [0], [1]), "one value a dimension"),
        (lambda x: transpose.sort_v2(x, 0), "dim must be the last"),
        (lambda x: index.scatter_nd_update(x, torch.tensor([0]), x[0]), "at least 2-D"),
        (lambda x: index.scatter_nd_update(x, torch.tensor([[2]]), x[:1]), "out of range"),
        (lambda x: index.scatter_nd_update(x, torch.tensor([[0]]), x), r"updates must be \[1, 3\]"),
        (lambda x: index.scatter_nd_update(x, torch.tensor([[0]]), x[:1].half()), "dtype of"),
        (lambda x: index.scatter_nd_update(x, torch.tensor([[0] * 3]), x), "more dimensions"),
        (lambda x: index.gather_backward(x, [2, 3], 0, x.long(), True), "sparse_grad"),
    ],
)
def test_a_broken_rule_is_named(call, rule: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(RuntimeError, match=rule):
        call(torch.randn(2, 3))
