"""What `upstream_tests.py` runs on every rank: one test file of Megatron's, on one tree."""

import importlib
import json
import os
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from harness.worker import enter_tree

_FETCHER = "tests.test_utils.python_scripts.download_unit_tests_dataset"


class Recorder:
    """A pytest plugin that writes each test's outcome down as soon as it is known."""

    def __init__(self, report: Path) -> None:
        self._report = report

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """A test that never ends has this line only."""
        self._write(nodeid, "unfinished")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """The call decides, and a setup or teardown that does not pass."""
        if report.when == "call" or report.outcome != "passed":
            outcome = "error" if report.failed and report.when != "call" else report.outcome
            self._write(report.nodeid, outcome, str(report.longrepr or "")[-400:])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be imported."""
        if report.failed:
            self._write(report.nodeid, "error", str(report.longrepr)[-400:])

    def _write(self, test: str, outcome: str, reason: str = "") -> None:
        with self._report.open("a") as stream:
            stream.write(json.dumps([test, outcome, reason]) + "\n")


def run_file(tree: str, root: str, file: str, report: str, options: tuple[str, ...]) -> None:
    """Run one test file in this process, which has imported no Megatron.

    Args:
        tree: the folder above `megatron`.
        root: the folder above Megatron's `tests`.
        file: the test file, below `root`.
        report: path to which `.<rank>` is added: a JSON line for each outcome.
        options: names of config fields to switch on wherever the config allows it.

    Raises:
        RuntimeError: pytest itself did not get through.
    """
    enter_tree(tree, lend_triton=True)
    sys.path.insert(1, root)
    os.chdir(root)
    warnings.simplefilter("ignore")
    if options:
        switch_on(options)
    fetcher = ModuleType(_FETCHER)  # there is no such server here, and no data that it has
    fetcher.download_and_extract_asset = lambda **_: None  # type: ignore[attr-defined]
    sys.modules[_FETCHER] = fetcher
    words = ["-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", root, file]
    code = pytest.main(words, plugins=[Recorder(Path(f"{report}.{os.environ['RANK']}"))])
    if code not in (0, 1, 5):
        raise RuntimeError(f"pytest ended with {code}")


def switch_on(options: tuple[str, ...]) -> None:
    """Make every new TransformerConfig ask for these options, as far as its rules allow."""
    config: Any = importlib.import_module("megatron.core.transformer.transformer_config")
    rules: Any = importlib.import_module("mindspeed.core.options.rules")
    kind = config.TransformerConfig
    plain = kind.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        plain(self, *args, **kwargs)
        for name in options:
            before = getattr(self, name)
            if not before:
                setattr(self, name, True)
                try:
                    rules.validate(self)
                except ValueError:
                    setattr(self, name, before)

    kind.__init__ = init
