"""Fixtures of the context-parallel tests."""

import shutil
from pathlib import Path
from types import ModuleType

import pytest

from harness.modules import import_file
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
    return import_file(Path(mindspeed_path, "mindspeed/core/context_parallel/costs.py"))
