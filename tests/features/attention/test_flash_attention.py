"""attention/flash-attention: off is upstream, on is the same function by one operator."""

import pytest

from features.cases import FLASH_ATTENTION
from features.compared import Compared, Sweep
from harness.trees import ALL_RELEASES


@pytest.fixture(scope="module", params=ALL_RELEASES)
def compared(request: pytest.FixtureRequest, sweep: Sweep) -> Compared:
    """One release: the pristine tree, the patched one with the option off, and with it on."""
    return sweep.compare(request.param, FLASH_ATTENTION)


def test_off_is_upstream_bit_for_bit(compared: Compared) -> None:
    compared.assert_off_is_upstream()


def test_on_is_the_same_function(compared: Compared) -> None:
    compared.assert_on_is_the_same_function()
