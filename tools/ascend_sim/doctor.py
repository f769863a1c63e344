"""Checks of `python -m ascend_sim doctor`: what the simulated device needs, one line each."""

import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata

from ascend_sim.autoload import has_cann
from ascend_sim.errors import SimulatorError

TESTED_VERSIONS = {"torch": "2.13.0", "torch-npu": "2.13.0"}

_PROBE = """
import ascend_sim; ascend_sim.install()
import torch, torch_npu
x = torch.arange(6.0, device="npu").reshape(2, 3).requires_grad_()
(x @ x.t()).sum().backward()
expected = 2 * x.detach().cpu().sum(0).expand(2, 3)
assert x.grad.device.type == "npu" and torch.allclose(x.grad.cpu(), expected)
print(f"{torch.npu.device_count()} x {torch.npu.get_device_name(0)}")
"""


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    passed: bool
    detail: str


def run_checks() -> list[Check]:
    """Return the checks in order; the last one computes a gradient in its own process."""
    checks = [_check_version(name, wanted) for name, wanted in TESTED_VERSIONS.items()]
    checks += [_check_program(name) for name in ("cc", "nm", "readelf")]
    found = has_cann()
    detail = "found; the simulated device is not needed here" if found else "none, as expected"
    checks.append(Check("CANN", True, detail))
    if all(check.passed for check in checks):
        checks += [_check_libraries(), _check_gradient()]
    return checks


def _check_version(distribution: str, wanted: str) -> Check:
    try:
        version = metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return Check(
            distribution, False, "not installed; run `pip install 'mindspeed-overlay[sim]'`"
        )
    detail = version if version.startswith(wanted) else f"{version}, tested with {wanted}"
    return Check(distribution, True, detail)


def _check_program(name: str) -> Check:
    path = shutil.which(name)
    return Check(name, path is not None, path or "not found; install gcc and binutils")


def _check_libraries() -> Check:
    from ascend_sim.stub import ensure_libraries

    try:
        return Check("stand-in libraries", True, str(ensure_libraries()))
    except SimulatorError as error:
        return Check("stand-in libraries", False, str(error))


def _check_gradient() -> Check:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _PROBE],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    return Check("gradient on a device", done.returncode == 0, lines[-1] if lines else "no output")
