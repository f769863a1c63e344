"""A pytest plugin: counts the calls of one Ascend operator in each test of a run.

`COUNT_OPERATOR` names the operator, `COUNT_FILE` the file that gets `{"test": calls}` at the end.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

_counts: dict[str, int] = {}
_current = ""


def pytest_sessionstart() -> None:
    """Wrap the operator where tests look it up; the device is installed by then."""
    import torch_npu

    name = os.environ["COUNT_OPERATOR"]
    operator = getattr(torch_npu, name)

    def counted(*args: Any, **kwargs: Any) -> Any:
        _counts[_current] = _counts.get(_current, 0) + 1
        return operator(*args, **kwargs)

    setattr(torch_npu, name, counted)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Remember which test runs."""
    global _current
    _current = item.name
    _counts.setdefault(_current, 0)


def pytest_sessionfinish() -> None:
    """Write what was counted."""
    Path(os.environ["COUNT_FILE"]).write_text(json.dumps(_counts), "utf-8")
