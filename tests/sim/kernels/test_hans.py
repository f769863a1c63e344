"""Lossless coding: every bit comes back, the histogram counts, documented sizes are required."""

import pytest
import torch
from torch import Tensor

from ascend_sim.kernels.hans import hans_decode_out, hans_encode_out

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
COUNT = 32768
BOUND = COUNT + COUNT // 64 + 8448 * 40


def buffers(dtype: torch.dtype, fixed_bytes: int, *, count: int = COUNT) -> list[Tensor]:
    size = torch.finfo(dtype).bits // 8
    mantissa = torch.zeros(count * (size - 1) // size, dtype=dtype)
    var = torch.zeros(max(0, BOUND + count - fixed_bytes) // size, dtype=dtype)
    fixed = torch.zeros(fixed_bytes // size, dtype=dtype)
    return [torch.zeros(1, 256, dtype=torch.int32), mantissa, fixed, var]


def as_bits(x: Tensor) -> Tensor:
    return x.view(torch.int32 if x.dtype == torch.float32 else torch.int16)


def all_patterns(dtype: torch.dtype) -> Tensor:
    """Every 16-bit pattern; for fp32, each one as the high and as the low half."""
    patterns = torch.arange(-(2**15), 2**15, dtype=torch.int32)
    if dtype != torch.float32:
        return patterns.to(torch.int16).view(dtype)
    return torch.cat([patterns << 16, patterns]).view(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("fixed_bytes", "reshuff"), [(512, False), (9000, False), (BOUND * 4, True)]
)
def test_every_bit_pattern_comes_back(dtype: torch.dtype, fixed_bytes: int, reshuff: bool) -> None:
    x = all_patterns(dtype)
    pdf, mantissa, fixed, var = hans_encode_out(
        x, True, reshuff, out=buffers(dtype, fixed_bytes, count=x.numel())
    )
    out = torch.zeros_like(x)
    assert hans_decode_out(mantissa, fixed, var, pdf, reshuff, out=out) is out
    assert torch.equal(as_bits(out), as_bits(x))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_histogram_counts_exponents_when_asked(dtype: torch.dtype) -> None:
    x = torch.full((64, 512), 1.5, dtype=dtype)
    x[:, ::4] = -6.0
    out = buffers(dtype, 1024)
    hans_encode_out(x, False, False, out=out)
    assert int(out[0].sum()) == 0
    hans_encode_out(x, True, False, out=out)
    assert int(out[0].sum()) == COUNT
    assert sorted(int(n) for n in out[0].flatten() if n) == [COUNT // 4, 3 * COUNT // 4]


def test_a_broken_rule_is_named() -> None:
    x = torch.randn(COUNT).bfloat16()
    good = buffers(torch.bfloat16, 1024)
    cases: list[tuple[Tensor, list[Tensor], bool, str]] = [
        (x[:-32], good, False, "multiple of 64"),
        (x[:16384], good, False, "32768 or more"),
        (x.double(), good, False, "must be float16"),
        (x, [good[0][:, :5], *good[1:]], False, "pdf must hold 256"),
        (x, [good[0], good[1][:-1], *good[2:]], False, "mantissa must have 32768 bytes"),
        (x, [*good[:2], good[2][:100], good[3]], False, "at least 512 bytes"),
        (x, [*good[:3], good[3][:100]], False, f"fixed and var must have at least {BOUND}"),
        (x, good, True, f"fixed must have at least {BOUND}"),
        (x, good[:3], False, "out must be"),
    ]
    for tensor, out, reshuff, rule in cases:
        with pytest.raises(RuntimeError, match=rule):
            hans_encode_out(tensor, True, reshuff, out=out)


def test_the_device_round_trip_writes_the_buffers_it_is_given() -> None:
    x = torch.randn(64, 512).bfloat16().to("npu")
    pdf, mantissa, fixed, var = (buffer.to("npu") for buffer in buffers(torch.bfloat16, 4096))
    torch.ops.npu.npu_hans_encode.out(x, True, False, out=(pdf, mantissa, fixed, var))
    assert int(pdf.sum()) == COUNT
    out = torch.zeros_like(x)
    torch.ops.npu.npu_hans_decode.out(mantissa, fixed, var, pdf, False, out=out)
    assert torch.equal(out.cpu(), x.cpu())
