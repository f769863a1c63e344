"""`transformer_engine.pytorch.ops`: the names that upstream's annotations use; building one is
refused.

`use_te_op_fuser`, `use_te_activation_func` and `fused_residual_rmsnorm` are what build them.
"""

from typing import Any

import torch
from mindspeed.te.refusal import refuse


class FusibleOperation(torch.nn.Module):
    """An operation of TransformerEngine's fuser."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        refuse(f"transformer_engine.pytorch.ops.{type(self).__name__}")


class Sequential(FusibleOperation):
    """A chain of operations."""


def __getattr__(name: str) -> type[FusibleOperation]:
    """Any other operation, by its class name."""
    if not name[:1].isupper():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return type(name, (FusibleOperation,), {"__module__": __name__})
