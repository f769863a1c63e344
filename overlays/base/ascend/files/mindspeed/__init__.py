"""Ascend features of a patched Megatron, in the layout that Ascend users know.

This package comes with a megatron-core that was built by mindspeed-overlay. The features are in
Megatron's own files and are chosen by its configuration; importing this package does nothing.
"""

from pathlib import Path
from typing import Any

__all__ = ["__version__", "build_info", "status"]


def build_info() -> dict[str, Any]:
    """What this build is made of: release, overlays and the hash of every file.

    Returns:
        The contents of `build.json`; an empty dict in a patched source tree, which has none.
    """
    import json

    path = Path(__file__).with_name("build.json")
    return json.loads(path.read_text("utf-8")) if path.is_file() else {}


def status(*configs: Any) -> Any:
    """What is built in, and what is on and why for each config; print it.

    Args:
        configs: Megatron's configs; by default those that this process has built models from.
    """
    import importlib

    try:
        module = importlib.import_module("mindspeed.core.options.status")
    except ModuleNotFoundError:  # a build without base/options has no options
        return f"megatron-core {build_info().get('version', 'patched source tree')}, no options"
    return module.get_status(*configs)


def __getattr__(name: str) -> str:
    """`__version__`: the version of the installed build, `unknown` in a source tree."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return str(build_info().get("version", "unknown"))
