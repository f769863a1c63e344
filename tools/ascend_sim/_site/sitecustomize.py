"""Arms the simulated device in every Python process that `python -m ascend_sim run` starts.

Python imports one `sitecustomize`; the next one on the path is run too, so none is lost.
"""

import importlib.machinery
import importlib.util
import os
import sys

import ascend_sim.loader

ascend_sim.loader.arm()


def _run_next() -> None:
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 (no pathlib at start)
    others = [entry for entry in sys.path if os.path.abspath(entry) != here]  # noqa: PTH100
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


_run_next()
