"""What the patched files of `megatron.core` call."""
