"""Fixtures of feature tests."""

import pytest

from features.cases import SWEPT
from features.compared import Sweep
from harness.trees import Trees


@pytest.fixture(scope="session")
def sweep(trees: Trees) -> Sweep:
    """Compares every feature on a release, in two processes."""
    return Sweep(trees, SWEPT)
