"""Fixtures for every test: Megatron trees, made once a session."""

import os

os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")  # torch_npu is loaded where asked for

import pytest

from harness.trees import Trees

pytest_plugins = ["ascend_sim.ranks_plugin"]


@pytest.fixture(scope="session")
def trees(tmp_path_factory: pytest.TempPathFactory) -> Trees:
    """Pristine and patched trees of every pinned release, on disk."""
    return Trees(tmp_path_factory.mktemp("trees"))
