"""Attention by Ascend operators."""
