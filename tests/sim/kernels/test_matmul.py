"""Linear and batched products against float64, gradients against autograd."""

import pytest
import torch
from torch import Tensor

from ascend_sim.kernels import matmul

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def close(actual: Tensor, expected: Tensor) -> None:
    bound = TOLERANCE[actual.dtype]
    torch.testing.assert_close(actual.double(), expected, rtol=bound, atol=bound)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_linear_and_its_gradients(dtype: torch.dtype, with_bias: bool, rows: int) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(rows, 4).to(dtype), torch.randn(3, 4).to(dtype)
    bias, grad = torch.randn(3).to(dtype), torch.randn(rows, 3).to(dtype)
    leaf_x, leaf_w = x.double().requires_grad_(), weight.double().requires_grad_()
    expected = torch.einsum("mk,nk->mn", leaf_x, leaf_w)
    torch.autograd.backward(expected, grad.double())
    out = matmul.linear(x, weight, bias if with_bias else None)
    assert out.dtype == dtype
    close(out, expected.detach() + (bias.double() if with_bias else 0))
    grad_x, grad_w = matmul.linear_backward(grad, x, weight)
    assert leaf_x.grad is not None
    assert leaf_w.grad is not None
    close(grad_x, leaf_x.grad)
    close(grad_w, leaf_w.grad)


SHAPES = [
    ((2, 3, 4), (2, 4, 5)),
    ((3, 4), (2, 4, 5)),
    ((2, 3, 4), (4, 5)),
    ((2, 1, 3, 4), (6, 4, 5)),
    ((4,), (2, 4, 5)),
    ((2, 3, 4), (4,)),
    ((3, 4), (4, 5)),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("left", "right"), SHAPES)
def test_bmm_broadcasts_and_its_gradients_sum_back(
    dtype: torch.dtype, left: tuple[int, ...], right: tuple[int, ...]
) -> None:
    torch.manual_seed(1)
    mat1, mat2 = torch.randn(left).to(dtype), torch.randn(right).to(dtype)
    leaf1, leaf2 = mat1.double().requires_grad_(), mat2.double().requires_grad_()
    expected = torch.matmul(leaf1, leaf2)
    grad = torch.randn(expected.shape).to(dtype)
    torch.autograd.backward(expected, grad.double())
    close(matmul.bmm_v2(mat1, mat2, []), expected.detach())
    assert leaf1.grad is not None
    assert leaf2.grad is not None
    close(matmul.bmm_v2_mat1_backward(grad, mat1, mat2, list(left)), leaf1.grad)
    close(matmul.bmm_v2_mat2_backward(grad, mat1, mat2, list(right)), leaf2.grad)


def test_bmm_sums_to_the_output_sizes() -> None:
    mat1, mat2 = torch.randn(5, 3, 4), torch.randn(5, 4, 2)
    out = matmul.bmm_v2(mat1, mat2, [1, 3, 2])
    close(out, sum(mat1[i].double() @ mat2[i].double() for i in range(5))[None])  # type: ignore[index]


def test_bmm_of_integers_is_exact() -> None:
    mat = torch.tensor([[[2**20, 3], [1, -4]]], dtype=torch.int32)
    assert matmul.bmm_v2(mat, mat, []).tolist() == [
        [[2**40 % 2**32 + 3, 3 * 2**20 - 12], [2**20 - 4, 19]]
    ]


@pytest.mark.parametrize(
    ("call", "rule"),
    [
        (lambda: matmul.linear(torch.ones(2, 3), torch.ones(2, 4)), "agree about k"),
        (lambda: matmul.linear(torch.ones(2, 3, 1), torch.ones(2, 3)), "must be 2-D"),
        (lambda: matmul.linear(torch.ones(2, 3), torch.ones(2, 3).half()), "one dtype"),
        (lambda: matmul.linear(torch.ones(2, 3).double(), torch.ones(2, 3)), "input must be"),
        (lambda: matmul.linear(torch.ones(2, 3), torch.ones(2, 3), torch.ones(3)), "bias must"),
        (lambda: matmul.bmm_v2(torch.ones(1, 1, 1).char(), torch.ones(1), []), "input must be"),
        (lambda: matmul.bmm_v2(torch.ones(1, 1), torch.ones(1, 1).half(), []), "one dtype"),
    ],
)
def test_a_broken_rule_is_named(call, rule: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(RuntimeError, match=rule):
        call()
