"""Keeps plain `import torch` working where torch_npu is installed without CANN.

torch loads every installed backend when it is imported, and torch_npu cannot be loaded without
CANN's libraries: `import torch` then fails. A `.pth` file of the wheel runs `switch_off()` when
Python starts. It acts only where torch_npu is installed, no trace of CANN or of a device is found,
and the user has not set the switch.
"""

import os
import sys

_SWITCH = "TORCH_DEVICE_BACKEND_AUTOLOAD"
_CANN_VARIABLES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "ASCEND_OPP_PATH")
_CANN_PATHS = ("/dev/davinci_manager", "/usr/local/Ascend")
_LIBRARY = "libascendcl.so"


def has_cann() -> bool:
    """Return whether this machine has CANN or a device node, by its files and variables only."""
    if any(os.environ.get(variable) for variable in _CANN_VARIABLES):
        return True
    if any(os.path.exists(path) for path in _CANN_PATHS):  # noqa: PTH110 (pathlib is slow)
        return True
    folders = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    if any(folder and os.path.exists(f"{folder}/{_LIBRARY}") for folder in folders):  # noqa: PTH110
        return True
    try:
        with open("/etc/ld.so.cache", "rb") as cache:  # noqa: PTH123
            return _LIBRARY.encode() in cache.read()
    except OSError:
        return False


def switch_off() -> None:
    """Switch torch's loading of backends off, here and in children, where it would fail."""
    if _SWITCH in os.environ or has_cann():
        return
    if any(os.path.exists(f"{entry}/torch_npu/__init__.py") for entry in sys.path):  # noqa: PTH110
        os.environ[_SWITCH] = "0"
