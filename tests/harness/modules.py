"""One module of an overlay by itself, where a test needs no tree around it."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def import_file(path: Path) -> ModuleType:
    """Run a Python file as a module named after it; nothing of its package is imported."""
    spec = importlib.util.spec_from_file_location(f"{path.stem}_alone", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
