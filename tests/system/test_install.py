"""From PyPI to an installed, verified, running Megatron in fresh environments: pip and uv."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

pytestmark = pytest.mark.network

RUN_ONE_STEP = """
import torch
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.fusions.fused_bias_swiglu import bias_swiglu_impl
import mindspeed
config = TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=2)
assert config.use_fused_swiglu is False
x = torch.randn(3, 2, 8, requires_grad=True)
bias_swiglu_impl(x, None).sum().backward()
print(mindspeed.__version__, x.grad.abs().sum().item() > 0)
"""


def tool(
    *words: str, check: bool = True, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "tools")}
    command = [sys.executable, "-m", "mindspeed_overlay", *words]
    return subprocess.run(
        command, check=check, capture_output=True, text=True, env=environment, cwd=cwd
    )


def run(*words: object, **kwargs: object) -> str:
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, **kwargs)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    return Path(tool("build", "--out", str(out)).stdout.strip())


@pytest.fixture(scope="module", params=["pip", "uv"])
def installed(
    request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The Python of a fresh environment with the wheel; torch and numpy are lent by a path file."""
    folder = tmp_path_factory.mktemp(request.param) / "venv"
    if request.param == "pip":
        run(sys.executable, "-m", "venv", folder)
        run(folder / "bin/pip", "install", "-q", "--no-deps", "--no-index", wheel)
    else:
        uv = [sys.executable, "-m", "uv"]
        run(*uv, "venv", "-q", "--python", sys.executable, folder)
        python = folder / "bin/python"
        run(*uv, "pip", "install", "-q", "--python", python, "--no-deps", "--no-index", wheel)
    site = next((folder / "lib").glob("python*/site-packages"))
    (site / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin/python"


def clean(cwd: Path) -> dict[str, object]:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return {"cwd": cwd, "env": environment | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}}


def test_the_installed_wheel_runs_and_verifies(
    installed: Path, wheel: Path, tmp_path: Path
) -> None:
    said = run(installed, "-c", RUN_ONE_STEP, **clean(tmp_path))
    assert said.split() == [wheel.name.split("-")[1], "True"]
    lock = wheel.with_name("build.lock.json")
    words = ("verify", "--installed", "--python", str(installed), "--lock", str(lock), "--json")
    verdict = json.loads(tool(*words, cwd=tmp_path).stdout)
    assert verdict["ok"]
    assert verdict["authentic"]
    site = next(installed.parents[1].glob("lib/python*/site-packages"))
    assert verdict["locations"]["megatron.core"] == str(site / "megatron/core")


def test_a_checkout_that_shadows_the_wheel_is_found(installed: Path, tmp_path: Path) -> None:
    core = tmp_path / "megatron/core"
    core.mkdir(parents=True)
    (core / "__init__.py").write_text("")
    words = ("verify", "--installed", "--python", str(installed))
    found = tool(*words, check=False, cwd=tmp_path)
    assert found.returncode == 9
    assert f"megatron.core is imported from {core}" in found.stderr


@pytest.mark.parametrize("kind", ["changed", "added", "removed", "stale", "path file"])
def test_a_changed_installation_is_named(installed: Path, tmp_path: Path, kind: str) -> None:
    site = next(installed.parents[1].glob("lib/python*/site-packages"))
    target = site / "megatron/core/transformer/mlp.py"
    before = target.read_bytes()
    added = site / "megatron/core/extra.py"
    pth = site / "other_megatron.pth"
    pyc = target.parent / "__pycache__" / f"mlp.{sys.implementation.cache_tag}.pyc"
    kept = pyc.read_bytes() if pyc.exists() else None
    try:
        if kind == "changed":
            target.write_bytes(before.replace(b"import torch", b"import  torch", 1))
            named = "megatron/core/transformer/mlp.py"
        elif kind == "added":
            added.write_text("")
            named = "megatron/core/extra.py"
        elif kind == "removed":
            target.unlink()
            named = "megatron/core/transformer/mlp.py"
        elif kind == "stale":
            run(installed, "-m", "py_compile", target, **clean(tmp_path))
            os.utime(target, (1, 1))
            named = "stale bytecode"
        else:
            pth.write_text("/opt/other/megatron\n")
            named = "other_megatron.pth"
        found = tool("verify", "--installed", "--python", str(installed), check=False, cwd=tmp_path)
        assert found.returncode == 9
        assert named in found.stderr
    finally:
        target.write_bytes(before)
        added.unlink(missing_ok=True)
        pth.unlink(missing_ok=True)
        pyc.unlink(missing_ok=True)
        if kept:
            run(installed, "-m", "py_compile", target, **clean(tmp_path))
