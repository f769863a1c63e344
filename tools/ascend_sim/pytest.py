"""The pytest plugin `-p ascend_sim.pytest`: the tests of a run see the simulated device.

No environment variable is needed. On a host with a real CANN the real device is used, and the
header says so.
"""

import os

import pytest

import ascend_sim
from ascend_sim.autoload import has_cann

os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")

pytest_plugins = ["ascend_sim.ranks_plugin"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options of the simulated machine."""
    group = parser.getgroup("ascend_sim", "the simulated Ascend device")
    group.addoption("--ascend-devices", type=int, default=8, help="number of simulated devices")
    group.addoption("--ascend-soc", default="Ascend910B3", help="name of the simulated chip")
    group.addoption("--ascend-memory-gib", type=float, default=64, help="memory of a device")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Install the device before any test module is imported."""
    if has_cann():
        return
    try:
        ascend_sim.install(
            devices=config.getoption("--ascend-devices"),
            soc=config.getoption("--ascend-soc"),
            memory_gib=config.getoption("--ascend-memory-gib"),
        )
    except ascend_sim.SimulatorError as error:
        raise pytest.UsageError(str(error)) from error


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say which device the tests run on, and what it cannot show."""
    if has_cann():
        return ["ascend: real device"]
    machine = f"{config.getoption('--ascend-devices')} x {config.getoption('--ascend-soc')}"
    return [
        f"ascend: simulated {machine} on the CPU; not shown: speed, rounding of the chip, "
        "stream races, HCCL itself"
    ]
