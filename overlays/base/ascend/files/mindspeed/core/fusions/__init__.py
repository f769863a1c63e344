"""Ascend operators that do in one launch what Megatron does in several."""
