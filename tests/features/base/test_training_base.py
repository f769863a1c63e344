"""What docs/base-adaptation.md says that needs no overlay, or base/optimizers alone: it runs."""

import pytest
import torch

from harness.runner import run_on_device
from harness.trees import COMPARED_RELEASES, Trees
from harness.worker import Scenario

CHECKS = "features.base.training_base_checks"
OVERLAYS = ("base/optimizers", "base/te")


@pytest.mark.parametrize("tag", COMPARED_RELEASES)
def test_a_clipped_bf16_moe_model_resumes_with_equal_bits(tag: str, trees: Trees) -> None:
    names = ("use_random_states", "measure_gradients", "resume", "train", "load_from_cuda")
    scenarios = [Scenario(f"{CHECKS}:{name}") for name in names]
    tree = trees.patched(tag, OVERLAYS)
    draws, measured, losses, trained, loaded = run_on_device(tree, scenarios)[0]
    for name, (first, second) in draws.items():
        assert first.equal(second), name
    assert 0 < (draws["recomputed dropout"][0] == 0).sum() < 64
    expected = [4.0, 28 ** (1 / 3), 2.0, 0.0]
    assert measured["norms"].tolist() == pytest.approx(expected, rel=1e-6)
    assert measured["zeros"] == 2
    assert measured["clipped"].tolist() == pytest.approx([0.6, 0.0, 0.8, 0.0], rel=1e-5)
    assert torch.isfinite(losses["straight"]).all()
    assert losses["resumed"].equal(losses["straight"])
    assert torch.allclose(trained["sharded"], trained["whole"], rtol=1e-2)
    assert [v.tolist() for v in loaded.values()] == [[0.0, 1.0, 2.0]] * 2
