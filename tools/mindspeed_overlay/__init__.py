"""Build installable Megatron wheels from pinned releases and versioned source overlays."""

__version__ = "0.1.0"
