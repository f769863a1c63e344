"""What is checked of base/ascend inside a tree, in a process of its own."""

import importlib
import inspect
import pkgutil
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import torch

# Wrappers of the package itself: without it they have nothing to offer, and say so.
WRAPPERS = (
    "megatron.core.ssm.triton_cache_manager",
    "megatron.core.extensions.transformer_engine",
    "megatron.core.transformer.custom_layers.transformer_engine",
)
ABSENT = ("triton", "transformer_engine", "apex")


def import_gpt_model() -> dict[str, Any]:
    """Import what every training script imports, without an NPU; say what came along."""
    for name in ABSENT:
        assert importlib.util.find_spec(name) is None, f"{name} is installed: nothing is shown"
    before = set(sys.modules)
    from megatron.core.models.gpt import GPTModel

    return {
        "class": GPTModel.__name__,
        "npu": sorted(name for name in sys.modules if name.partition(".")[0] == "torch_npu"),
        "ours": sorted(n for n in set(sys.modules) - before if n.split(".")[0] == "mindspeed"),
    }


def find_failing_imports() -> list[str]:
    """Modules of megatron.core that cannot be imported for want of an NVIDIA package."""
    import megatron.core

    failing = []
    for module in pkgutil.walk_packages(
        megatron.core.__path__, "megatron.core.", onerror=lambda name: None
    ):
        if module.name in WRAPPERS:
            continue
        try:
            importlib.import_module(module.name)
        except Exception as error:  # other packages may be missing, or too new for a release
            if any(name in str(error).lower() for name in ABSENT):
                failing.append(f"{module.name}: {error}")
    return failing


def launch_guarded_kernels(modules: list[str]) -> dict[str, list[str]]:
    """For each module the kernels that it defines, each launched: what they say."""
    said: dict[str, list[str]] = {}
    for name in modules:
        module = importlib.import_module(name)
        kernels = [
            value
            for value in vars(module).values()
            if type(value).__name__ == "MissingKernel" and value.__module__ == name
        ]
        for kernel in kernels:
            try:
                kernel[(1,)](torch.empty(1), BLOCK_SIZE=16)
            except ImportError as error:
                said.setdefault(name, []).append(str(error))
    return said


def read_fallbacks() -> dict[str, bool]:
    """Names by which callers find out that there is no Triton: they must still say so."""
    found = {}
    for module, name in (
        ("megatron.core.inference.contexts.dynamic_context", "triton_append_key_value_cache"),
        ("megatron.core.ssm.ops", "mamba_chunk_scan_combined_varlen"),
        ("megatron.core.ssm.ops", "causal_conv1d_varlen_fn"),
        ("megatron.core.ssm.mamba_mixer", "HAVE_SSM_OPS_VARLEN"),
    ):
        try:
            value = inspect.getattr_static(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            continue
        found[f"{module}.{name}"] = bool(value)
    return found


def compile_helpers_with() -> list[list[str]]:
    """The commands that compile_helpers runs where compiled helpers import."""
    return _compile_helpers(compiled=True)


def compile_helpers_without() -> list[list[str]]:
    """The commands that compile_helpers runs where they do not."""
    return _compile_helpers(compiled=False)


def _compile_helpers(*, compiled: bool) -> list[list[str]]:
    from megatron.core import datasets
    from megatron.core.datasets.utils import compile_helpers

    name = "megatron.core.datasets.helpers_cpp"
    if compiled:
        sys.modules[name] = datasets.helpers_cpp = types.ModuleType(name)
    else:
        sys.modules[name] = None  # type: ignore[assignment]
        vars(datasets).pop("helpers_cpp", None)
    commands = []

    def run(command: list[str], **keywords: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 0)

    real, subprocess.run = subprocess.run, run  # type: ignore[assignment]
    try:
        compile_helpers()
    finally:
        subprocess.run = real
    return commands


def import_module(name: str) -> str:
    """Import a module; what it says if it refuses."""
    try:
        importlib.import_module(name)
    except (ImportError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "imported"


def start_run() -> str:
    """Make the process groups of a training run of one rank; what that says."""
    from megatron.core import parallel_state

    torch.distributed.init_process_group(
        "gloo",
        rank=0,
        world_size=1,
        store=torch.distributed.HashStore(),  # type: ignore[attr-defined]
    )
    try:
        parallel_state.initialize_model_parallel()
    except RuntimeError as error:
        return str(error)
    return "started"


def load_package_from(name: str, folder: str) -> None:
    """Pretend that `name` was imported from `folder`, as from a checkout on PYTHONPATH."""
    module = types.ModuleType(name)
    module.__file__ = str(Path(folder) / "__init__.py")
    sys.modules[name] = module


def read_build_info() -> tuple[str, dict[str, Any]]:
    """Version and build information of the package beside this Megatron."""
    import mindspeed

    return mindspeed.__version__, mindspeed.build_info()
