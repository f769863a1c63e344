"""Makes the stand-in libraries visible to the real torch_npu and installs the kernels once it is
imported."""

import ctypes
import importlib.abc
import importlib.machinery
import importlib.util
import io
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from ascend_sim.errors import SimulatorError
from ascend_sim.stub import MAIN_LIBRARY, ensure_libraries

_SETTING = "ASCEND_SIM_"


@dataclass(frozen=True)
class Settings:
    """What the simulated machine looks like; the defaults are one node of eight 910B3."""

    devices: int = 8
    soc: str = "Ascend910B3"
    memory_gib: float = 64
    poison: bool = False

    def to_environment(self) -> dict[str, str]:
        """Return the variables that carry these settings to child processes."""
        return {
            f"{_SETTING}DEVICES": str(self.devices),
            f"{_SETTING}SOC": self.soc,
            f"{_SETTING}MEMORY_GIB": repr(self.memory_gib),
            f"{_SETTING}POISON": str(int(self.poison)),
        }

    @classmethod
    def from_environment(cls) -> "Settings":
        """Return the settings that `python -m ascend_sim run` put into the environment."""
        get = os.environ.get
        return cls(
            devices=int(get(f"{_SETTING}DEVICES", cls.devices)),
            soc=get(f"{_SETTING}SOC", cls.soc),
            memory_gib=float(get(f"{_SETTING}MEMORY_GIB", cls.memory_gib)),
            poison=get(f"{_SETTING}POISON", "0") not in ("", "0"),
        )


class Runtime:
    """The loaded stand-in runtime (libascendcl.so)."""

    library: ctypes.CDLL | None = None
    settings: Settings | None = None


def preload(settings: Settings) -> None:
    """Load the stand-in libraries for torch_npu to find; a second call checks and returns.

    Raises:
        SimulatorError: the libraries cannot be built, torch_npu was imported without them, or they
        were
            loaded with other settings.
    """
    if Runtime.library is not None:
        if settings != Runtime.settings:
            raise SimulatorError(
                f"the simulated device was set up as {Runtime.settings}, not {settings}"
            )
        return
    if "torch_npu" in sys.modules:
        raise SimulatorError(
            "torch_npu was imported before ascend_sim.install(); it uses another CANN"
        )
    folder = ensure_libraries()
    names = json.loads(Path(folder, "stub.json").read_text(encoding="utf-8"))["sonames"]
    library = ctypes.CDLL(str(folder / MAIN_LIBRARY), mode=ctypes.RTLD_GLOBAL)
    for name in names:
        ctypes.CDLL(str(folder / name), mode=ctypes.RTLD_GLOBAL)
    library.ascend_sim_configure.argtypes = [
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_uint64,
        ctypes.c_int,
    ]
    memory_bytes = int(settings.memory_gib * 2**30)
    library.ascend_sim_configure(
        settings.devices, settings.soc.encode(), memory_bytes, settings.poison
    )
    library.ascend_sim_used_bytes.restype = ctypes.c_uint64
    Runtime.library, Runtime.settings = library, settings
    # Kernels are done when they return: torch_npu's queue thread would only add a race with the
    # host.
    os.environ["TASK_QUEUE_ENABLE"] = "0"
    os.environ.update(settings.to_environment())


def install(settings: Settings) -> None:
    """Import torch_npu on the simulated device and register the kernels; idempotent."""
    preload(settings)
    autoload = os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD")
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    try:
        import torch  # noqa: F401  (first, without loading backends)

        with _without_cann_notice():
            import torch_npu  # noqa: F401
    finally:
        if autoload is None:
            os.environ.pop("TORCH_DEVICE_BACKEND_AUTOLOAD", None)
        else:
            os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = autoload
    register_kernels()


@contextmanager
def _without_cann_notice() -> Iterator[None]:
    """Drop torch_npu's line on standard output about ASCEND_HOME_PATH."""
    text = io.StringIO()
    try:
        with redirect_stdout(text):
            yield
    finally:
        for line in text.getvalue().splitlines():
            if "ASCEND_HOME_PATH environment variable is not set" not in line:
                print(line)


def register_kernels() -> None:
    """Register the kernels with the imported torch_npu, and carry `hccl` groups."""
    from ascend_sim import dispatch, distributed

    dispatch.register()
    distributed.install()


class _Loader(importlib.abc.Loader):
    """Loads torch_npu as its own loader does, with the device set up before and the kernels
    after."""

    def __init__(self, inner: importlib.abc.Loader) -> None:
        self.inner = inner

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        preload(Settings.from_environment())
        return self.inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        with _without_cann_notice():
            self.inner.exec_module(module)
        register_kernels()


class _Finder(importlib.abc.MetaPathFinder):
    """Finds torch_npu first, to wrap its loader."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "torch_npu" or Runtime.library is not None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


def arm() -> None:
    """Set the device up whenever torch_npu is first imported in this process."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
