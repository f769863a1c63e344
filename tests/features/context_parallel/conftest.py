"""Fixtures of the context-parallel tests."""

import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

from mindspeed_overlay.data import default_overlays


@pytest.fixture(scope="session")
def mindspeed_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with the `mindspeed` package of the context-parallel overlays, without Megatron."""
    folder = tmp_path_factory.mktemp("mindspeed")
    root = Path(str(default_overlays()))
    for files in [root / "base/ascend/files", *sorted(root.glob("context-parallel/*/files"))]:
        shutil.copytree(files, folder, dirs_exist_ok=True)
    return str(folder)


@pytest.fixture(scope="session")
def costs(mindspeed_path: str) -> ModuleType:
    """The formulas, imported from their file."""
    path = Path(mindspeed_path, "mindspeed", "core", "context_parallel", "costs.py")
    spec = importlib.util.spec_from_file_location("context_parallel_costs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
