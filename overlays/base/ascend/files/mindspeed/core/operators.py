"""Make sure that an Ascend operator can run here."""

from functools import cache
from typing import Any


@cache
def require_operator(name: str, *, option: str) -> Any:
    """torch_npu, which has the operator, on a machine with an NPU.

    Args:
        name: the operator, like `npu_rms_norm`.
        option: what asks for it, for the message.

    Returns:
        The module torch_npu.

    Raises:
        RuntimeError: torch_npu cannot be imported, finds no NPU, or lacks the operator.
    """
    try:
        import torch_npu
    except ImportError as error:
        raise RuntimeError(f"{option} needs torch_npu, which fails to import: {error}") from error
    if not torch_npu.npu.is_available():
        raise RuntimeError(f"{option} needs an NPU, and torch_npu finds none on this machine")
    if not hasattr(torch_npu, name):
        version = torch_npu.__version__
        raise RuntimeError(f"{option} needs torch_npu.{name}, which torch_npu {version} lacks")
    return torch_npu
