"""A `triton` that only chosen modules of a tree can import.

A pristine release from 0.18.2 on cannot be imported without Triton. A stand-in for everybody would
break torch's own import and make Megatron's guarded modules believe in Triton, so it is served to
the modules that import Triton without a guard, and to nobody else.
"""

import builtins
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

_UNGUARDED = re.compile(rb"^import triton\b", re.MULTILINE)


def find_unguarded(tree: Path) -> frozenset[str]:
    """The modules of a tree that import Triton at module level without a guard."""
    return frozenset(
        ".".join(path.relative_to(tree).with_suffix("").parts)
        for path in tree.joinpath("megatron").rglob("*.py")
        if _UNGUARDED.search(path.read_bytes())
    )


def serve_triton(modules: frozenset[str]) -> None:
    """Let `modules`, by name, import a stand-in for Triton, from now on in this process."""
    triton = MagicMock(name="triton", __version__="3.0.0")
    triton.cdiv = lambda x, y: -(-x // y)
    real_import = builtins.__import__

    def import_module(
        name: str, globals: Mapping[str, Any] | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        asking = (globals or {}).get("__name__", "")
        if asking in modules and name.partition(".")[0] == "triton":
            # `import a.b as c` is `import a.b` and then the attribute b of what that gave.
            return triton
        return real_import(name, globals, *args, **kwargs)

    builtins.__import__ = import_module
