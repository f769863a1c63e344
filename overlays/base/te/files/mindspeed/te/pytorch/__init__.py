"""`transformer_engine.pytorch`: the modules that upstream's wrappers subclass or build."""

from mindspeed.te.pytorch import distributed, fp8, ops
from mindspeed.te.pytorch.attention import DotProductAttention
from mindspeed.te.pytorch.fp8 import fp8_autocast, fp8_model_init
from mindspeed.te.pytorch.grouped_linear import GroupedLinear
from mindspeed.te.pytorch.linear import LayerNormLinear, Linear
from mindspeed.te.pytorch.norm import LayerNorm, RMSNorm

__all__ = [
    "DotProductAttention",
    "GroupedLinear",
    "LayerNorm",
    "LayerNormLinear",
    "Linear",
    "RMSNorm",
    "distributed",
    "fp8",
    "fp8_autocast",
    "fp8_model_init",
    "ops",
]
