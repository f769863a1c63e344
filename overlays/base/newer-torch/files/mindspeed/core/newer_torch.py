"""Functions of torch that core 0.12 calls as they were, and that torch has changed since."""

import inspect
from typing import Any

from torch.distributed.checkpoint import filesystem

# torch 2.7 and later ask for one more argument; torch's own default for it is TORCH_SAVE.
_MORE: tuple[Any, ...] = ()
if "serialization_format" in inspect.signature(filesystem._write_item).parameters:
    _MORE = (filesystem.SerializationFormat.TORCH_SAVE,)


def write_item(*arguments: Any) -> Any:
    """torch's `_write_item`, with or without the format of serialization.

    Args:
        arguments: all of them, as torch 2.6 takes them.

    Returns:
        torch's WriteResult.
    """
    return filesystem._write_item(*arguments, *_MORE)
