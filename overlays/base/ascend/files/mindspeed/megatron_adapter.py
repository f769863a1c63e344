"""The older spelling of `mindspeed.megatron_adaptor`."""

from mindspeed import megatron_adaptor

__all__ = ["megatron_adaptor"]
