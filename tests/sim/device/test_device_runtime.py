"""Devices, streams, events, memory and settings through torch_npu's own API."""

import gc
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch_npu

from ascend_sim.errors import NoKernelError

npu: Any = torch_npu.npu

MIB = 2**20


@pytest.fixture(autouse=True)
def fresh_device() -> Iterator[None]:
    gc.collect()
    npu.set_device(0)
    npu.empty_cache()
    yield
    npu.set_device(0)


def test_machine_has_eight_named_devices() -> None:
    assert npu.is_available()
    assert npu.device_count() == 8
    assert npu.get_device_name(7) == "Ascend910B3"
    properties = npu.get_device_properties(3)
    assert properties.name == "Ascend910B3"
    assert properties.total_memory == 64 * 1024 * MIB
    assert npu.is_bf16_supported()
    assert torch.accelerator.current_accelerator() == torch.device("npu")


def test_current_device_decides_where_tensors_go() -> None:
    npu.set_device(2)
    assert npu.current_device() == 2
    assert torch.ones(1, device="npu").device == torch.device("npu", 2)
    with npu.device(5):
        assert (torch.zeros(3, device="npu") + 1).device.index == 5
    assert torch.arange(3, device="npu:4").device.index == 4
    assert npu.current_device() == 2


def test_device_number_beyond_the_last_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"107001|invalid device"):
        npu.set_device(8)


def test_results_stay_on_the_device_of_their_arguments() -> None:
    x = torch.ones(4, 4, device="npu:3", requires_grad=True)
    (x @ x).softmax(-1).sum().backward()
    assert x.grad is not None
    assert x.grad.device.index == 3
    assert torch_npu.npu_swiglu(x.detach()).device.index == 3


def test_two_devices_in_one_operator_are_refused() -> None:
    one, two = torch.ones(3, device="npu:1"), torch.ones(3, device="npu:2")
    with pytest.raises(RuntimeError, match="same device"):
        one + two
    with pytest.raises(RuntimeError, match="same device"):
        torch.nn.functional.embedding(torch.arange(2, device="npu:1"), two[:, None])


@pytest.mark.parametrize("call", [
    lambda x, y: x + y,
    lambda x, y: y * x,
    lambda x, y: x.add_(y),
    lambda x, y: torch.mm(x, y),
    lambda x, y: torch.nn.functional.layer_norm(x, (3,), y[0], y[0]),
    lambda x, y: torch.cat([x, y]),
    lambda x, y: torch.where(x > 0, y, x),
    lambda x, y: torch_npu.npu_rms_norm(x, y[0]),
    lambda x, y: torch.add(x, x, out=y),
])  # fmt: skip
def test_cpu_tensor_beside_a_device_tensor_is_refused(call: object) -> None:
    assert callable(call)
    with pytest.raises(RuntimeError, match=r"same device|found at least two devices"):
        call(torch.ones(3, 3, device="npu"), torch.ones(3, 3))


def test_cpu_scalar_beside_a_device_tensor_is_taken() -> None:
    x = torch.ones(3, device="npu")
    assert (x * torch.tensor(2.0) + torch.tensor(1)).tolist() == [3.0, 3.0, 3.0]


def test_streams_and_events_keep_time() -> None:
    stream = npu.Stream()
    start, end = npu.Event(enable_timing=True), npu.Event(enable_timing=True)
    with npu.stream(stream):
        assert npu.current_stream() == stream
        start.record()
        before = time.perf_counter()
        while time.perf_counter() - before < 0.002:
            torch.ones(8, device="npu").sum()
        end.record()
    npu.current_stream().wait_stream(stream)
    npu.current_stream().wait_event(end)
    end.synchronize()
    assert end.query()
    assert stream.query()
    assert 2.0 <= start.elapsed_time(end) < 1000.0
    assert npu.current_stream() != stream
    npu.synchronize()


def test_record_stream_lets_memory_be_reused() -> None:
    side = npu.Stream()
    x = torch.ones(MIB, device="npu")
    x.record_stream(side)
    address = x.data_ptr()
    del x
    npu.synchronize()
    assert torch.ones(MIB, device="npu").data_ptr() == address


def test_memory_statistics_count_each_device() -> None:
    before = npu.memory_allocated(1)
    npu.reset_peak_memory_stats(1)
    x = torch.empty(4 * MIB, dtype=torch.uint8, device="npu:1")
    y = x + x
    used = npu.memory_allocated(1) - before
    assert 8 * MIB <= used < 9 * MIB
    assert npu.memory_reserved(1) >= used
    del x, y
    assert npu.memory_allocated(1) == before
    assert npu.max_memory_allocated(1) - before == used
    stats = npu.memory_stats(1)
    assert stats["allocated_bytes.all.peak"] == npu.max_memory_allocated(1)
    npu.reset_peak_memory_stats(1)
    assert npu.max_memory_allocated(1) == before
    assert "npu:1" not in npu.memory_summary(0)


def test_results_of_every_kind_are_device_memory() -> None:
    x = torch.randn(256, 256, device="npu:6")
    base = npu.memory_allocated(6)
    size = x.untyped_storage().nbytes()
    kept = [x @ x, x.softmax(-1), torch.nn.functional.layer_norm(x, (256,)), x.clone(), x.double()]
    kept += [torch_npu.npu_swiglu(x), torch.nn.functional.embedding(torch.arange(9).to("npu:6"), x)]
    expected = 4 * size + 2 * size + size // 2 + 9 * 1024
    assert expected <= npu.memory_allocated(6) - base < expected + 32 * 1024
    del kept
    assert npu.memory_allocated(6) == base


def test_mem_get_info_follows_the_cache() -> None:
    npu.set_device(4)
    free, total = npu.mem_get_info(4)
    assert total == 64 * 1024 * MIB
    x = torch.empty(64 * MIB, dtype=torch.uint8, device="npu:4")
    assert free - npu.mem_get_info(4)[0] == npu.memory_reserved(4) >= 64 * MIB
    del x
    npu.empty_cache()
    assert npu.mem_get_info(4)[0] == free


def test_too_large_an_allocation_is_out_of_memory() -> None:
    with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 65\.00 GiB"):
        torch.empty(65 * 1024 * MIB, dtype=torch.uint8, device="npu")
    assert torch.ones(2, device="npu").sum().item() == 2


def test_cached_memory_is_given_back_before_running_out() -> None:
    npu.set_device(3)
    x = torch.empty(40 * 1024 * MIB, dtype=torch.uint8, device="npu:3")
    del x
    assert npu.memory_reserved(3) >= 40 * 1024 * MIB
    y = torch.empty(50 * 1024 * MIB, dtype=torch.uint8, device="npu:3")
    assert y.nbytes == 50 * 1024 * MIB
    del y
    npu.empty_cache()


def test_resize_to_zero_frees_and_use_after_it_is_refused() -> None:
    x = torch.ones(2 * MIB, device="npu:5")
    tail = x[MIB:]
    base = npu.memory_allocated(5)
    x.untyped_storage().resize_(0)
    assert base - npu.memory_allocated(5) >= 8 * MIB
    with pytest.raises(RuntimeError, match="storage was freed"):
        x + 1
    with pytest.raises(RuntimeError, match="storage was freed"):
        tail.sum()
    x.untyped_storage().resize_(x.numel() * 4)
    assert x.fill_(3.0).sum().item() == 3.0 * x.numel()


def test_storage_growth_keeps_the_contents() -> None:
    x = torch.arange(4.0, device="npu")
    x.resize_(8)
    assert x[:4].tolist() == [0.0, 1.0, 2.0, 3.0]
    x.untyped_storage().resize_(128)
    assert x[:4].tolist() == [0.0, 1.0, 2.0, 3.0]


def test_pinned_host_memory_is_known_as_pinned() -> None:
    plain = torch.arange(6.0)
    pinned = plain.pin_memory()
    assert pinned.is_pinned()
    assert not plain.is_pinned()
    assert torch.equal(pinned.to("npu", non_blocking=True).cpu(), plain)
    assert torch.empty(4, pin_memory=True).is_pinned()


def test_copies_convert_between_hosts_devices_and_dtypes() -> None:
    x = torch.randn(5, 7)
    there = x.to("npu:1").to("npu:2", torch.float64).t()
    assert torch.equal(there.cpu(), x.double().t())
    y = torch.empty(7, 5)
    y.copy_(there)
    assert torch.equal(y, x.t())
    there[2:5:2] = torch.zeros(2, 5)
    assert there[2:5:2].abs().sum().item() == 0
    z = torch.view_as_complex(torch.randn(4, 2)).to("npu")
    assert torch.equal(z.conj().cpu(), z.cpu().conj())
    assert torch.equal(torch.zeros_like(z).copy_(z.conj()).cpu(), z.cpu().conj())


def test_settings_are_accepted() -> None:
    npu.set_option({"ACL_PRECISION_MODE": "must_keep_origin_dtype"})
    npu.set_compile_mode(jit_compile=False)
    npu.config.allow_internal_format = True
    npu.matmul.allow_hf32 = False
    assert npu.matmul.allow_hf32 is False


def test_format_cast_keeps_values_and_reports_the_format() -> None:
    npu.config.allow_internal_format = True
    x = torch.randn(20, 30, device="npu", dtype=torch.float16)
    cast = torch_npu.npu_format_cast(x, 29)
    assert torch_npu.get_npu_format(cast) == torch_npu.Format.FRACTAL_NZ
    assert torch_npu.get_npu_format(x) == torch_npu.Format.ND
    assert torch.equal(cast.cpu(), x.cpu())
    assert torch.equal((cast @ cast.t()).cpu(), (x @ x.t()).cpu())
    torch_npu.npu_format_cast_(x, 29)
    assert torch_npu.get_npu_format(x) == torch_npu.Format.FRACTAL_NZ
    back = torch_npu.npu_format_cast(x, 2)
    assert torch_npu.get_npu_format(back) == torch_npu.Format.ND
    assert torch.equal(back.cpu(), cast.cpu())


def test_graph_capture_is_refused_with_a_reason() -> None:
    graph = npu.NPUGraph()
    with (
        npu.stream(npu.Stream()),
        pytest.raises(RuntimeError, match=r"aclmdlRICaptureBegin is not simulated"),
    ):
        graph.capture_begin()


def test_operator_without_a_kernel_names_itself() -> None:
    x = torch.ones(4, device="npu")
    with pytest.raises(NoKernelError, match=r"npu::npu_giou has no kernel") as caught:
        torch_npu.npu_giou(x, x)
    assert isinstance(caught.value, NotImplementedError)
    assert isinstance(caught.value, RuntimeError)
    with pytest.raises(NoKernelError, match=r"npu::npu_prompt_flash_attention"):
        torch_npu.npu_prompt_flash_attention(x, x, x)


def test_freed_tensors_leave_nothing_behind() -> None:
    base = npu.memory_allocated(7)
    for _ in range(3):
        x = torch.randn(64, 64, device="npu:7", requires_grad=True)
        torch.nn.functional.gelu(x @ x).sum().backward()
        del x
    assert npu.memory_allocated(7) == base
