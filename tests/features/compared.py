"""Run the cases of features on a release: pristine, patched with the options off, and on.

What costs is starting a process with torch_npu and Megatron in it. So all features share two: one
with the pristine tree, one with a tree that has all their overlays.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from harness.compare import assert_near, assert_same
from harness.runner import Named, run_on_device
from harness.trees import Trees
from harness.worker import Scenario

DTYPES = (torch.float32, torch.bfloat16)

Cases = Mapping[str, tuple[str, dict[str, Any]]]
"""name: (function of the scenario module, its options)."""

Results = dict[tuple[str, torch.dtype], Named]


@dataclass(frozen=True)
class Feature:
    """An overlay, its scenarios, and the option of theirs that switches it on."""

    overlay: str
    scenarios: str
    """The module that has the functions of `cases`."""
    switch: str
    cases: Cases
    later_cases: Cases = field(default_factory=dict)
    later: tuple[str, ...] = ()
    """The releases that have `later_cases` too."""

    def make_scenario(self, function: str, options: Mapping[str, Any], **more: Any) -> Scenario:
        """One scenario; `more` are further options."""
        return Scenario(f"{self.scenarios}:{function}", tuple({**options, **more}.items()))

    def find_cases(self, tag: str) -> dict[tuple[str, torch.dtype], tuple[str, dict[str, Any]]]:
        """The cases of a release in each dtype."""
        cases = {**self.cases, **(self.later_cases if tag in self.later else {})}
        return {
            (name, dtype): (function, {**options, "dtype": dtype})
            for name, (function, options) in cases.items()
            for dtype in DTYPES
        }

    def make_scenarios(self, tag: str, *, on: bool) -> list[Scenario]:
        """Every case of a release, with the feature off or on."""
        more: dict[str, Any] = {self.switch: True} if on else {}
        return [self.make_scenario(*case, **more) for case in self.find_cases(tag).values()]


@dataclass(frozen=True)
class Compared:
    """The results of one feature on one release."""

    pristine: Results
    off: Results
    on: Results

    def assert_off_is_upstream(self) -> None:
        """Bit for bit."""
        for key, want in self.pristine.items():
            assert_same(self.off[key], want)

    def assert_on_is_the_same_function(self) -> None:
        """Within the tolerance of each dtype, outputs and every gradient."""
        for (name, dtype), want in self.pristine.items():
            slack = 2.0 if name.startswith("gpt") else 1.0
            assert_near(self.on[name, dtype], want, computed_in=dtype, case=name, slack=slack)


class Sweep:
    """Compares all features on a release when the first of them is asked for.

    Test processes that run side by side share what they find in a folder.
    """

    def __init__(self, trees: Trees, features: tuple[Feature, ...], folder: Path) -> None:
        self._trees = trees
        self._features = features
        self._folder = folder

    def compare(self, tag: str, feature: Feature) -> Compared:
        """The results of one feature on one release."""
        path = self._folder / f"sweep-{tag}.pt"
        with FileLock(path.with_suffix(".lock")):
            if not path.is_file():
                torch.save(self._run(tag), path)
            found = torch.load(path, weights_only=True)
        keys = list(feature.find_cases(tag))
        results = (dict(zip(keys, part, strict=True)) for part in found[feature.overlay])
        return Compared(*results)

    def _run(self, tag: str) -> dict[str, list[list[Named]]]:
        """For each feature: its cases on the pristine tree, off and on."""
        off = [s for feature in self._features for s in feature.make_scenarios(tag, on=False)]
        on = [s for feature in self._features for s in feature.make_scenarios(tag, on=True)]
        overlays = tuple(feature.overlay for feature in self._features)
        pristine = run_on_device(self._trees.pristine(tag), off)[0]
        patched = run_on_device(self._trees.patched(tag, overlays), [*off, *on])[0]
        found, start = {}, 0
        for feature in self._features:
            stop = start + len(feature.find_cases(tag))
            parts = (pristine, patched[: len(off)], patched[len(off) :])
            found[feature.overlay] = [part[start:stop] for part in parts]
            start = stop
        return found
