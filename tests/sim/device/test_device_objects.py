"""Tensors travel: save, load, copy, pickle, data loaders, storages, numpy."""

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

pytestmark = pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")  # torch_npu's own


def save_and_load(value: Any, **options: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer, **options)


def test_loaded_tensor_is_on_its_device_with_its_values() -> None:
    x = torch.randn(3, 4, device="npu:2")
    loaded = save_and_load({"x": x, "t": x.t(), "half": x.bfloat16()})
    assert loaded["x"].device.index == 2
    assert torch.equal(loaded["x"], x)
    assert loaded["t"].stride() == (1, 4)
    assert loaded["t"].untyped_storage().data_ptr() == loaded["x"].untyped_storage().data_ptr()
    assert torch.equal(loaded["half"], x.bfloat16())


@pytest.mark.parametrize("target", ["cpu", "npu:1"])
def test_map_location_moves_on_load(target: str) -> None:
    x = torch.randn(3, device="npu:0")
    loaded = save_and_load(x, map_location=target)
    assert str(loaded.device) == target
    assert torch.equal(loaded.cpu(), x.cpu())


def test_cpu_checkpoint_loads_onto_the_device() -> None:
    x = torch.randn(3)
    loaded = save_and_load(x, map_location="npu:3")
    assert loaded.device.index == 3
    assert torch.equal(loaded.cpu(), x)


def test_module_state_round_trips() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).to("npu")
    other = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).to("npu")
    other.load_state_dict(save_and_load(model.state_dict()))
    x = torch.randn(5, 3, device="npu")
    assert torch.equal(model(x), other(x))


def test_deepcopy_and_pickle_give_separate_memory() -> None:
    parameter = nn.Parameter(torch.randn(3, device="npu"))
    for twin in (copy.deepcopy(parameter), pickle.loads(pickle.dumps(parameter))):
        assert isinstance(twin, nn.Parameter)
        assert twin.device == parameter.device
        assert twin.data_ptr() != parameter.data_ptr()
        assert torch.equal(twin, parameter)


def test_data_loader_batches_reach_the_device() -> None:
    data = TensorDataset(torch.arange(12.0).reshape(6, 2), torch.arange(6))
    seen = [
        (x.to("npu", non_blocking=True), y.to("npu"))
        for x, y in DataLoader(data, batch_size=2, pin_memory=True)
    ]
    assert torch.equal(torch.cat([x for x, _ in seen]).cpu(), data.tensors[0])
    assert torch.cat([y for _, y in seen]).tolist() == list(range(6))


def test_data_loader_workers_run_beside_the_device() -> None:
    torch.ones(1, device="npu")
    loader = DataLoader(TensorDataset(torch.arange(4.0)), batch_size=2, num_workers=1)
    assert [x.to("npu").sum().item() for (x,) in loader] == [1.0, 5.0]


def test_storages_are_made_copied_and_shared() -> None:
    storage = torch.UntypedStorage(16, device="npu:1")
    torch.empty(0, device="npu:1").set_(storage)  # torch_npu describes a bare storage only now
    x = torch.empty(0, dtype=torch.float32, device="npu:1").set_(storage, 0, (4,))  # type: ignore[call-overload]
    x.fill_(2.0)
    assert storage.cpu().tolist() == torch.full((4,), 2.0).untyped_storage().tolist()
    view = x[1:3]
    assert view.untyped_storage().data_ptr() == storage.data_ptr()
    assert view.storage_offset() == 1
    view.zero_()
    assert x.tolist() == [2.0, 0.0, 0.0, 2.0]


def test_numpy_and_lists_need_the_host() -> None:
    x = torch.arange(3.0, device="npu")
    with pytest.raises(TypeError, match="npu"):
        x.numpy()
    assert x.cpu().numpy().tolist() == x.tolist() == [0.0, 1.0, 2.0]
    assert float(x[1]) == 1.0
    assert bool((x > -1).all())
    assert "npu:0" in repr(x)


def test_scalar_conversions_and_control_flow() -> None:
    x = torch.tensor([3], device="npu")
    assert [0, 1, 2, 3, 4][x] == 3
    assert list(range(int(x))) == [0, 1, 2]
    if torch.equal(x, torch.tensor([3], device="npu")):
        x += 1
    assert x.item() == 4


def test_inference_mode_and_no_grad() -> None:
    weight = torch.ones(3, 3, device="npu", requires_grad=True)
    with torch.inference_mode():
        y = (weight @ weight).relu_()
        y[0] = 0
        assert y.is_inference()
    with torch.no_grad():
        weight.mul_(2)
        assert not (weight @ weight).requires_grad
    assert y.sum().item() == 18.0


def test_default_device_context_makes_device_tensors() -> None:
    with torch.device("npu:1"):
        x: Tensor = torch.zeros(3)
        layer = nn.Linear(2, 2)
    assert x.device.index == 1
    assert layer.weight.device.index == 1
    assert (x + 1).sum().item() == 3


def test_meta_tensors_become_device_tensors() -> None:
    layer = nn.Linear(3, 4, device="meta").to_empty(device="npu")
    nn.init.constant_(layer.weight, 0.5)
    assert layer.weight.sum().item() == 6.0
