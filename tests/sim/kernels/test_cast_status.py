"""Casts and the overflow flag."""

import pytest
import torch

from ascend_sim.kernels import cast, status

IDS = {torch.int8: 1, torch.int32: 3, torch.int64: 4, torch.float16: 5, torch.float32: 6}


@pytest.mark.parametrize("dtype", [*IDS, torch.bfloat16, torch.bool, torch.float8_e4m3fn])
def test_dtype_cast_makes_a_copy_in_the_dtype_of_the_id(dtype: torch.dtype) -> None:
    number = {**IDS, torch.bfloat16: 15, torch.bool: 11, torch.float8_e4m3fn: 24}[dtype]
    x = torch.tensor([0.0, 1.5, -1.0])
    out = cast.dtype_cast(x, number)
    assert out.dtype == dtype
    assert torch.equal(out.float(), x.to(dtype).float())
    assert torch.equal(cast.private_dtype_cast(x, dtype).float(), out.float())
    assert out.data_ptr() != x.data_ptr()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_gradient_returns_to_the_dtype_of_the_input(dtype: torch.dtype) -> None:
    grad = torch.tensor([1.0, -2.0])
    assert cast.dtype_cast_backward(grad, dtype, 15).dtype == dtype
    assert cast.private_dtype_cast_backward(grad, dtype).tolist() == [1.0, -2.0]


def test_the_in_place_cast_writes_only_across_dtypes() -> None:
    target = torch.zeros(2, dtype=torch.float16)
    assert cast.dtype_cast_(target, torch.tensor([1.0, 2.0])) is target
    assert target.tolist() == [1.0, 2.0]
    cast.dtype_cast_(target, torch.tensor([5.0, 6.0]).half())
    assert target.tolist() == [1.0, 2.0]


def test_types_that_torch_lacks_are_refused() -> None:
    with pytest.raises(NotImplementedError, match="dtype id 290"):
        cast.dtype_cast(torch.ones(1), 290)
    with pytest.raises(NotImplementedError, match="input_dtype 296"):
        cast.dtype_cast(torch.ones(1), 6, 296)
    with pytest.raises(NotImplementedError, match="input_dtype 296"):
        cast.dtype_cast_backward(torch.ones(1), torch.float32, 6, 296)


def test_a_format_cast_keeps_the_values() -> None:
    x = torch.randn(2, 3).t()
    outs = [
        cast.format_cast(x, 29),
        cast.format_cast_aclnn(x, 29, 1),
        cast.format_cast_input_dtype(x, 2, 1, 1),
    ]
    for out in outs:
        assert torch.equal(out, x)
        assert out.data_ptr() != x.data_ptr()
    assert cast.format_cast_in_place(x, outs[0]) is x
    assert cast.format_cast_in_place_to(x, 29) is x
    for call in (cast.format_cast, cast.format_cast_in_place_to):
        with pytest.raises(RuntimeError, match="999 is not an aclFormat"):
            call(x, 999)


def test_the_overflow_flag_never_rises() -> None:
    flag = status.alloc_float_status(torch.ones(3, dtype=torch.int64))
    assert flag.tolist() == [0.0] * 8
    assert flag.dtype == torch.float32
    read = status.get_float_status(flag)
    assert read.tolist() == [0] * 8
    assert read.dtype == torch.int32
    assert status.clear_float_status(flag).tolist() == [0.0] * 8
    for call in (status.get_float_status, status.clear_float_status):
        with pytest.raises(RuntimeError, match="mode must be 0 or 1"):
            call(flag, 2)
