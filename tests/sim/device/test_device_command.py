"""The ways to get the device: `run`, `doctor`, the pytest plugin, install and the libraries."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ascend_sim import autoload, loader, stub
from ascend_sim.errors import SimulatorError

TOOLS = Path(stub.__file__).parents[1]
SWIGLU = (
    "import torch, torch_npu; x = torch.randn(4, 8, device='npu', requires_grad=True); "
    "torch_npu.npu_swiglu(x).sum().backward(); print(x.grad.device)"
)


def run(*words: str, env: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    """Run Python with the package on the path and no setting of the device inherited."""
    kept = {n: v for n, v in os.environ.items() if not n.startswith(("ASCEND_SIM_D", "TORCH_"))}
    kept["PYTHONPATH"] = str(TOOLS)
    command = [sys.executable, *words]
    return subprocess.run(
        command, env=kept | (env or {}), capture_output=True, text=True, timeout=120, check=False
    )


def run_on_device(code: str, *options: str) -> str:
    words = ["-m", "ascend_sim", "run", *options, "--", sys.executable, "-W", "ignore", "-c", code]
    done = run(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_run_gives_a_program_the_device() -> None:
    assert run_on_device(SWIGLU) == "npu:0"


def test_run_reaches_grandchildren_and_passes_settings() -> None:
    code = (
        "import subprocess, sys; print(subprocess.check_output([sys.executable, '-c', "
        "'import torch; print(torch.npu.device_count(), torch.npu.get_device_name(0), "
        "torch.npu.mem_get_info()[1] >> 30)'], text=True))"
    )
    options = ("--devices", "2", "--soc", "Ascend910B1", "--memory-gib", "32")
    assert run_on_device(code, *options) == "2 Ascend910B1 32"


def test_run_keeps_the_sitecustomize_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('mine')\n")
    words = ("-m", "ascend_sim", "run", "--", sys.executable, "-c", "print('then')")
    done = run(*words, env={"PYTHONPATH": os.pathsep.join([str(TOOLS), str(tmp_path)])})
    assert done.stdout.split()[-2:] == ["mine", "then"]


def test_run_returns_the_exit_code_of_the_program() -> None:
    words = ("-m", "ascend_sim", "run", "--", sys.executable, "-c", "raise SystemExit(7)")
    assert run(*words).returncode == 7


def test_run_names_a_missing_program() -> None:
    done = run("-m", "ascend_sim", "run", "--", "no-such-program")
    assert done.returncode == 1
    assert done.stderr.startswith("error: no-such-program: No such file")
    assert "no program given" in run("-m", "ascend_sim", "run").stderr


def test_doctor_computes_a_gradient() -> None:
    done = run("-m", "ascend_sim", "doctor")
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-1] == "ok   gradient on a device: 8 x Ascend910B3"


def test_plugin_needs_no_variable(tmp_path: Path) -> None:
    test = tmp_path / "test_it.py"
    test.write_text(
        "import torch, torch_npu\n"
        "def test_it():\n"
        "    assert torch.npu.device_count() == 3\n"
        "    assert torch.ones(3, device='npu').sum().item() == 3\n"
    )
    done = run("-m", "pytest", "-p", "ascend_sim.pytest", "--ascend-devices", "3", str(test))
    assert done.returncode == 0, done.stdout
    assert "ascend: simulated 3 x Ascend910B3 on the CPU" in done.stdout


def test_install_is_idempotent_and_refuses_another_machine() -> None:
    code = (
        "import ascend_sim; ascend_sim.install(devices=2); ascend_sim.install()\n"
        "try: ascend_sim.install(devices=4)\n"
        "except ascend_sim.SimulatorError as error: print('refused:', error)\n"
    )
    done = run("-W", "ignore", "-c", code)
    assert done.stdout.startswith("refused: the simulated device was set up as"), done.stderr


def test_transfer_to_npu_runs_a_cuda_script() -> None:
    code = """
import ascend_sim; ascend_sim.install()
import torch
from torch_npu.contrib import transfer_to_npu
assert torch.cuda.is_available() and torch.cuda.device_count() == 8
torch.cuda.set_device(1); torch.cuda.manual_seed(3)
layer = torch.nn.Linear(3, 4).cuda()
x = torch.randn(2, 3, device="cuda"); y = torch.ones(2, 3).cuda(non_blocking=True)
with torch.cuda.amp.autocast(dtype=torch.bfloat16):
    out = layer(x + y)
assert out.dtype == torch.bfloat16 and out.is_cuda
out.float().sum().backward()
state = torch.cuda.get_rng_state(); torch.cuda.set_rng_state(state)
start = torch.cuda.Event(enable_timing=True); start.record(); torch.cuda.synchronize()
assert torch.cuda.memory_allocated() > 0 and torch.cuda.FloatTensor([1.0]).is_cuda
with torch.cuda.stream(torch.cuda.Stream()):
    z = torch.zeros(3, device=torch.device("cuda", 2))
print(layer.weight.grad.device, z.device, torch.load.__name__)
"""
    done = run("-W", "ignore", "-c", code)
    assert done.stdout.split()[:2] == ["npu:1", "npu:2"], done.stderr


def test_libraries_are_built_once_and_name_what_they_refuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASCEND_SIM_CACHE", str(tmp_path))
    folder = stub.ensure_libraries()
    record = json.loads((folder / "stub.json").read_text())
    assert {"libascendcl.so", "libhccl.so"} <= set(record["sonames"])
    assert "aclrtMalloc" in record["written"]
    assert not set(record["written"]) & set(record["harmless"] + record["refused"])
    stamp = (folder / "libascendcl.so").stat().st_mtime_ns
    assert stub.ensure_libraries() == folder
    assert (folder / "libascendcl.so").stat().st_mtime_ns == stamp
    assert [entry.name for entry in tmp_path.iterdir() if entry.is_dir()] == [folder.name]


def test_processes_that_start_together_build_once(tmp_path: Path) -> None:
    code = "from ascend_sim import stub; print(stub.ensure_libraries())"
    command, setting = [sys.executable, "-c", code], {"ASCEND_SIM_CACHE": str(tmp_path)}
    environment = os.environ | setting | {"PYTHONPATH": str(TOOLS)}
    started = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    folders = {process.communicate(timeout=60)[0].strip() for process in started}
    assert [process.returncode for process in started] == [0, 0, 0]
    assert [entry for entry in tmp_path.iterdir() if entry.is_dir()] == [Path(folders.pop())]
    assert not folders


def test_poisoned_memory_is_not_a_number() -> None:
    code = "import torch; x = torch.empty(9, device='npu'); print(x.isnan().all().item(), x.sum())"
    assert run_on_device(code, "--poison").split() == ["True", "tensor(nan,", "device='npu:0')"]


def test_missing_compiler_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASCEND_SIM_CACHE", str(tmp_path))
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(SimulatorError, match="no-such-compiler was not found; install gcc"):
        stub.ensure_libraries()
    assert not any(entry.is_dir() for entry in tmp_path.iterdir())


def test_settings_round_trip_through_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = loader.Settings(devices=3, soc="Ascend910_9391", memory_gib=1.5, poison=True)
    for name, value in settings.to_environment().items():
        monkeypatch.setenv(name, value)
    assert loader.Settings.from_environment() == settings


SWITCH = "TORCH_DEVICE_BACKEND_AUTOLOAD"


def test_autoload_is_off_only_without_cann(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SWITCH, raising=False)
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path))
    autoload.switch_off()
    assert SWITCH not in os.environ
    monkeypatch.delenv("ASCEND_HOME_PATH")
    (tmp_path / "libascendcl.so").touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    autoload.switch_off()
    assert SWITCH not in os.environ
    monkeypatch.delenv("LD_LIBRARY_PATH")
    autoload.switch_off()
    assert os.environ.pop(SWITCH) == "0"


def test_autoload_is_left_alone_where_the_user_set_it_or_torch_npu_is_absent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(SWITCH, "1")
    autoload.switch_off()
    assert os.environ[SWITCH] == "1"
    monkeypatch.delenv(SWITCH)
    monkeypatch.setattr(sys, "path", [])
    autoload.switch_off()
    assert SWITCH not in os.environ


def test_plain_import_torch_works_with_the_pth(tmp_path: Path) -> None:
    line = (Path(__file__).parents[3] / "tools/ascend_sim/ascend_sim.pth").read_text()
    (tmp_path / "ascend_sim.pth").write_text(line)
    code = (
        f"import site; site.addsitedir({str(tmp_path)!r}); import torch; print(torch.ones(2).sum())"
    )
    broken = run("-c", "import torch", env={SWITCH: "1"})  # the wheel's own .pth may be there
    assert "Failed to load the backend extension: torch_npu" in broken.stderr
    assert run("-c", code).stdout.strip() == "tensor(2.)"
