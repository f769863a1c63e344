"""A dense and an MoE model train 30 steps on the simulated device along stored loss curves."""

import json

import pytest

from harness.trees import COMPARED_RELEASES, Trees
from system.loss_curves import MODELS, STEPS, STORED, run_models

# fp32 sums in another order on another processor; 30 steps widen that.
TOLERANCE = 2e-3


@pytest.mark.parametrize("tag", COMPARED_RELEASES)
def test_models_train_along_the_stored_curves(trees: Trees, tag: str) -> None:
    stored = json.loads(STORED.read_text("utf-8"))[tag]
    found = run_models(trees, tag)
    assert found.keys() == stored.keys() == MODELS.keys()
    for name, curve in found.items():
        assert len(curve) == STEPS
        assert curve[-1] < curve[0] / 4, f"{name} does not learn: {curve}"
        assert curve == pytest.approx(stored[name], rel=TOLERANCE), (
            f"{name}: `python tests/system/loss_curves.py` writes the curves anew"
        )
