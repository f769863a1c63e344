"""Runs the same scenario on a pristine and on a patched Megatron, in separate processes."""
