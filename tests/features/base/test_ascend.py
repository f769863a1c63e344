"""base/ascend: imports everywhere, prepares a device only where one is, finds a hidden Megatron."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from harness.runner import run_on_cpu
from harness.trees import ALL_RELEASES, Trees
from harness.triton_stub import find_unguarded
from mindspeed_overlay.data import default_overlays

CHECKS = "features.base.ascend_checks"
FILES = default_overlays() / "base" / "ascend" / "files" / "mindspeed"
OVERLAYS = ("base/ascend",)
# Known by hand: the modules of each pristine release that import Triton unguarded.
UNGUARDED = {
    "core_v0.12.1": 0,
    "core_v0.14.0": 0,
    "core_v0.15.3": 1,
    "core_v0.16.1": 3,
    "core_v0.17.1": 6,
    "core_v0.18.2": 7,
    "core_v0.19.0": 7,
}

GPT_NEEDS_TRITON = ("core_v0.18.2", "core_v0.19.0")


@pytest.fixture(scope="module", params=ALL_RELEASES)
def facts(request: pytest.FixtureRequest, trees: Trees) -> dict[str, Any]:
    """What one release's patched tree says in a process without an NPU."""
    tag = request.param
    unguarded = sorted(find_unguarded(trees.pristine(tag)))
    questions: dict[str, tuple[str, tuple[Any, ...]]] = {
        "import": (f"{CHECKS}:import_gpt_model", ()),
        "adaptors": (f"{CHECKS}:import_module", ("mindspeed.megatron_adapter",)),
        "start": (f"{CHECKS}:start_run", ()),
        "make": (f"{CHECKS}:compile_helpers_without", ()),
        "no make": (f"{CHECKS}:compile_helpers_with", ()),
        "failing": (f"{CHECKS}:find_failing_imports", ()),
        "kernels": (f"{CHECKS}:launch_guarded_kernels", (unguarded,)),
        "fallbacks": (f"{CHECKS}:read_fallbacks", ()),
    }
    answers = run_on_cpu([trees.patched(tag, OVERLAYS)], *questions.values())
    return dict(zip(questions, answers, strict=True)) | {"tag": tag, "unguarded": unguarded}


def test_gpt_model_imports_without_nvidia_packages_and_without_torch_npu(
    facts: dict[str, Any],
) -> None:
    assert facts["import"]["class"] == "GPTModel"
    assert facts["import"]["npu"] == []
    needed = ["mindspeed", "mindspeed.core", "mindspeed.core.device"]
    if facts["tag"] in GPT_NEEDS_TRITON:
        needed.append("mindspeed.core.missing_triton")
    assert facts["import"]["ours"] == needed


def test_every_module_imports_without_nvidia_packages(facts: dict[str, Any]) -> None:
    assert facts["failing"] == []


def test_every_guarded_kernel_names_itself_when_launched(facts: dict[str, Any]) -> None:
    assert len(facts["unguarded"]) == UNGUARDED[facts["tag"]]
    without_kernels = {"megatron.core.ssm.ops.ssd_combined"}  # host code only
    assert set(facts["kernels"]) == set(facts["unguarded"]) - without_kernels
    for module, messages in facts["kernels"].items():
        assert all(m.startswith(f"{module}.") and "Triton kernel" in m for m in messages)


def test_callers_still_take_their_way_without_triton(facts: dict[str, Any]) -> None:
    expected = {"core_v0.12.1": 0, "core_v0.14.0": 0, "core_v0.15.3": 1, "core_v0.16.1": 1}
    assert len(facts["fallbacks"]) == expected.get(facts["tag"], 4)
    assert not any(facts["fallbacks"].values())


def test_helpers_are_compiled_only_where_they_do_not_import(facts: dict[str, Any]) -> None:
    assert facts["no make"] == []
    assert [command[0] for command in facts["make"]] == ["make"]


def test_run_starts_where_nothing_hides_this_megatron(facts: dict[str, Any]) -> None:
    assert (facts["adaptors"], facts["start"]) == ("imported", "started")


def test_patched_tree_has_no_unguarded_triton_left(trees: Trees) -> None:
    left = {tag: find_unguarded(trees.patched(tag, OVERLAYS)) for tag in ALL_RELEASES}
    assert not any(left.values())


@pytest.mark.parametrize("first", ["mindspeed.megatron_adaptor", "mindspeed.megatron_adapter"])
def test_adaptor_finds_a_checkout_that_hides_the_build(trees: Trees, first: str) -> None:
    ours, checkout = trees.patched("core_v0.16.1", OVERLAYS), trees.pristine("core_v0.16.1")
    said = run_on_cpu([checkout, ours], (f"{CHECKS}:import_module", (first,)))[0]
    assert said.startswith("RuntimeError: this run imports megatron.core from ")
    assert str(checkout) in said
    assert str(ours) in said


def test_another_package_named_mindspeed_is_named(trees: Trees, tmp_path: Path) -> None:
    (tmp_path / "mindspeed").mkdir()
    (tmp_path / "mindspeed" / "__init__.py").touch()
    paths = [tmp_path, trees.patched("core_v0.16.1", OVERLAYS)]
    said = run_on_cpu(paths, (f"{CHECKS}:import_module", ("megatron.core",)))[0]
    assert said == (
        "ImportError: another `mindspeed` package hides the one built with this Megatron"
    )


def test_run_does_not_start_with_a_package_of_the_build_from_elsewhere(
    trees: Trees, tmp_path: Path
) -> None:
    load = (f"{CHECKS}:load_package_from", ("megatron.training", str(tmp_path)))
    start = (f"{CHECKS}:start_run", ())
    said = run_on_cpu([trees.patched("core_v0.17.1", OVERLAYS)], load, start)[1]
    assert f"megatron.training from {tmp_path}" in said


def test_run_starts_with_a_package_that_the_build_does_not_carry(
    trees: Trees, tmp_path: Path
) -> None:
    load = (f"{CHECKS}:load_package_from", ("megatron.training", str(tmp_path)))
    start = (f"{CHECKS}:start_run", ())
    assert run_on_cpu([trees.patched("core_v0.16.1", OVERLAYS)], load, start)[1] == "started"


# The probe and the switch, on our own file, with a package named torch_npu that only takes note.


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """mindspeed.core.device, on a machine without torch_npu, device files and switch."""
    for name in [n for n in sys.modules if n.partition(".")[0] == "torch_npu"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delenv("MINDSPEED_TRANSFER_TO_NPU", raising=False)
    module = load_file("device", FILES / "core" / "device.py")
    monkeypatch.setattr(module, "DEVICE_FILE", str(tmp_path / "davinci_manager"))
    return module


def load_file(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def install_torch_npu(folder: Path, monkeypatch: pytest.MonkeyPatch, *, body: str = "") -> None:
    """A torch_npu whose device may not be touched: any attribute that is asked for raises."""
    contrib = folder / "torch_npu" / "contrib"
    contrib.mkdir(parents=True)
    touch = "def __getattr__(name):\n    raise AssertionError(f'asked torch_npu for {name}')\n"
    (folder / "torch_npu" / "__init__.py").write_text(body + "\n" + touch)
    (contrib / "__init__.py").touch()
    (contrib / "transfer_to_npu.py").touch()
    monkeypatch.syspath_prepend(str(folder))


def test_machine_without_npu_is_left_alone(
    device: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_torch_npu(tmp_path, monkeypatch)
    assert device.prepare_device() is False
    assert "torch_npu" not in sys.modules


def test_device_file_makes_the_import_prepare_the_device(
    device: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_torch_npu(tmp_path, monkeypatch)
    Path(device.DEVICE_FILE).touch()
    assert device.prepare_device() is True
    assert "torch_npu.contrib.transfer_to_npu" in sys.modules
    assert device.prepare_device() is True


def test_imported_torch_npu_counts_as_an_npu(
    device: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_torch_npu(tmp_path, monkeypatch)
    importlib.import_module("torch_npu")
    assert device.prepare_device() is True


def test_switch_leaves_the_device_to_the_caller(
    device: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_torch_npu(tmp_path, monkeypatch)
    Path(device.DEVICE_FILE).touch()
    monkeypatch.setenv("MINDSPEED_TRANSFER_TO_NPU", "0")
    assert device.prepare_device() is False
    assert "torch_npu" not in sys.modules


def test_switch_prepares_without_asking(
    device: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_torch_npu(tmp_path, monkeypatch)
    monkeypatch.setenv("MINDSPEED_TRANSFER_TO_NPU", "1")
    assert device.prepare_device() is True


def test_switch_takes_no_other_value(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINDSPEED_TRANSFER_TO_NPU", "yes")
    with pytest.raises(ValueError, match="MINDSPEED_TRANSFER_TO_NPU=yes: must be 0 or 1"):
        device.prepare_device()


def test_transfer_that_is_in_force_is_not_imported_again(
    device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "torch_npu.contrib.transfer_to_npu"
    monkeypatch.setitem(sys.modules, name, ModuleType(name))
    assert device.prepare_device() is True
    assert "torch_npu" not in sys.modules


def test_npu_without_torch_npu_is_a_warning_that_says_what_to_do(
    device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(device.DEVICE_FILE).touch()
    monkeypatch.setitem(sys.modules, "torch_npu", None)  # the import system: not found
    monkeypatch.setattr(device, "has_npu", lambda: True)
    with pytest.warns(RuntimeWarning, match="Install torch_npu, or set MINDSPEED_TRANSFER_TO_NPU"):
        assert device.prepare_device() is False


def test_torch_npu_that_cannot_be_imported_is_an_error_with_its_reason(
    device: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = "raise ImportError('libhccl.so: cannot open shared object file')"
    install_torch_npu(tmp_path, monkeypatch, body=reason)
    Path(device.DEVICE_FILE).touch()
    with pytest.raises(ImportError, match=r"libhccl.so.*set_env.sh"):
        device.prepare_device()


def test_stand_ins_work_for_every_form_of_decorator() -> None:
    module = load_file("missing_triton", FILES / "core" / "missing_triton.py")
    triton: Any = module.triton
    tl: Any = module.tl

    def add(x: Any, n: Any, BLOCK: Any = tl.constexpr) -> None:
        """Adds."""

    kernel = triton.jit(launch_metadata=None)(add)
    kernel = triton.heuristics({"EVEN": lambda args: True})(kernel)
    configs = [triton.Config({"BLOCK": 16}, num_warps=2)]
    add_kernel = triton.autotune(configs=configs, key=["n"])(kernel)
    assert add_kernel.__doc__ == "Adds."
    with pytest.raises(ImportError, match=r"add is a Triton kernel"):
        add_kernel[lambda meta: (triton.cdiv(5, 2),)](None, 5)
    with pytest.raises(ImportError, match=r"triton\.runtime\.driver needs Triton"):
        triton.runtime.driver()
    assert [triton.cdiv(7, 3), triton.next_power_of_2(5), triton.next_power_of_2(8)] == [3, 8, 8]


def test_build_information_is_read_from_the_build(trees: Trees) -> None:
    tree = trees.patched("core_v0.16.1", OVERLAYS)
    question = (f"{CHECKS}:read_build_info", ())
    assert run_on_cpu([tree], question)[0] == ("unknown", {})
    record = tree / "mindspeed" / "build.json"
    record.write_text(json.dumps({"version": "0.16.1+mindspeed.1.gabc"}))
    try:
        version, info = run_on_cpu([tree], question)[0]
    finally:
        record.unlink()
    assert version == info["version"] == "0.16.1+mindspeed.1.gabc"
