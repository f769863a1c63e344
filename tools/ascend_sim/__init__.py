"""A simulated Ascend device: the real torch_npu on any CPU machine.

`install()` replaces the CANN runtime below torch_npu by host memory and CPU kernels. Schemas,
autograd formulas, meta functions, the caching allocator and the `torch.npu` API stay torch_npu's
own. See docs/simulated-ascend.md.
"""

from typing import TYPE_CHECKING, Any

from ascend_sim.errors import NoKernelError, SimulatorError

if TYPE_CHECKING:
    from ascend_sim.comm_log import Traffic

__all__ = ["NoKernelError", "SimulatorError", "install", "is_installed", "traffic"]


def install(
    *, devices: int | None = None, soc: str | None = None, memory_gib: float | None = None
) -> None:
    """Import torch_npu on a simulated machine; again with the same settings it does nothing.

    Args:
        devices: number of devices; default ASCEND_SIM_DEVICES, else 8.
        soc: chip name; default ASCEND_SIM_SOC, else Ascend910B3.
        memory_gib: memory of each device; default ASCEND_SIM_MEMORY_GIB, else 64.

    Raises:
        SimulatorError: torch_npu is missing or already imported on a real CANN, or the device was
        set up with
            other settings.
    """
    from dataclasses import replace

    from ascend_sim import loader

    settings = loader.Runtime.settings or loader.Settings.from_environment()
    chosen = {"devices": devices, "soc": soc, "memory_gib": memory_gib}
    given: dict[str, Any] = {name: value for name, value in chosen.items() if value is not None}
    loader.install(replace(settings, **given))


def is_installed() -> bool:
    """Return whether this process has the simulated device."""
    from ascend_sim import loader

    return loader.Runtime.library is not None


def traffic() -> "list[Traffic]":
    """What this rank sent since the start: calls and bytes by group and collective."""
    from ascend_sim import comm_log

    return comm_log.traffic()
