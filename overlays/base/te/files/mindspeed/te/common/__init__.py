"""`transformer_engine.common`: the names of its recipes."""

from mindspeed.te.common import recipe

__all__ = ["recipe"]
