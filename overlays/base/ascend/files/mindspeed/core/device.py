"""Prepare the Ascend device when `megatron.core` is imported.

Megatron says `torch.cuda` everywhere. torch_npu's own `transfer_to_npu` makes those names mean the
NPU, and must be imported before Megatron binds them. This module finds out whether to do so without
the device runtime: asking that would fix the visible devices, which frameworks choose later.
"""

import os
import sys
import warnings

SWITCH = "MINDSPEED_TRANSFER_TO_NPU"
"""Environment: unset asks `has_npu`, 1 prepares in any case, 0 leaves the device to the caller."""

# The driver makes it on every host with an NPU, and a container needs it beside any /dev/davinciN
# or /dev/vdavinciN. A CANN toolkit without an NPU (a build machine) does not have it.
DEVICE_FILE = "/dev/davinci_manager"

_TRANSFER = "torch_npu.contrib.transfer_to_npu"

# torch_npu reports no compute capability unless this is set, and torch's own `broadcast` then
# raises a TypeError. 8.0 asks for no code of newer GPUs; bf16 needs at least that.
_CAPABILITY = ("TORCH_NPU_DEVICE_CAPABILITY", "8.0")


def has_npu() -> bool:
    """Whether this process is meant to use NPUs: one `stat`, nothing imported, no device touched.

    A process that has imported torch_npu already counts too: that is how simulated devices, and
    programs that choose the device themselves, show up.
    """
    return "torch_npu" in sys.modules or os.path.exists(DEVICE_FILE)  # noqa: PTH110 (no pathlib here)


def prepare_device() -> bool:
    """Import torch_npu and `transfer_to_npu`, where there is an NPU and nobody has done it yet.

    Returns:
        Whether `transfer_to_npu` is in force.

    Raises:
        ValueError: MINDSPEED_TRANSFER_TO_NPU is neither 0 nor 1.
        ImportError: torch_npu is there, and cannot be imported.
    """
    choice = os.environ.get(SWITCH, "")
    if choice not in ("", "0", "1"):
        raise ValueError(f"{SWITCH}={choice}: must be 0 or 1, or not be set")
    if _TRANSFER in sys.modules:
        os.environ.setdefault(*_CAPABILITY)
        return True
    if choice == "0" or not (choice or has_npu()):
        return False
    try:
        import torch_npu  # noqa: F401
        from torch_npu.contrib import transfer_to_npu  # noqa: F401
    except ModuleNotFoundError as error:
        if choice or error.name != "torch_npu":
            raise
        warnings.warn(
            f"{DEVICE_FILE} says that this machine has an NPU, but torch_npu is not installed in "
            "this environment: Megatron will not use the NPU. Install torch_npu, or set "
            f"{SWITCH}=0",
            RuntimeWarning,
            stacklevel=2,
        )
        return False
    except ImportError as error:
        raise ImportError(
            f"torch_npu cannot be imported: {error}. Is CANN's set_env.sh sourced? "
            f"{SWITCH}=0 imports Megatron without the NPU"
        ) from error
    os.environ.setdefault(*_CAPABILITY)
    return True
