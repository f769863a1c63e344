"""Fixtures of feature tests."""

import os

import pytest

from features.cases import SWEPT
from features.compared import Sweep
from harness.trees import Trees


@pytest.fixture(scope="session")
def sweep(trees: Trees, tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    """Compares every feature on a release, in two processes, once for all test processes."""
    folder = tmp_path_factory.getbasetemp()
    return Sweep(trees, SWEPT, folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder)
