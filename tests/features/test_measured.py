"""What the features are for: less memory and fewer launches, as docs/features says."""

from typing import Any

import torch

from features.cases import OVERLAYS
from harness.runner import run_on_device
from harness.trees import Trees
from harness.worker import Scenario

SCENARIOS = "features.measure_scenarios"


def make_scenario(name: str, **options: Any) -> Scenario:
    return Scenario(f"{SCENARIOS}:{name}", tuple(options.items()))


def test_features_save_memory_and_launches(trees: Trees) -> None:
    keys = [
        *(("measure_attention", tokens, on) for tokens in (256, 512) for on in (False, True)),
        *((name, 256, on) for name in ("measure_rmsnorm", "measure_rope") for on in (False, True)),
    ]
    scenarios = [make_scenario(name, tokens=tokens, on=on) for name, tokens, on in keys]
    tree = trees.patched("core_v0.16.1", OVERLAYS)
    found = dict(zip(keys, run_on_device(tree, scenarios)[0], strict=True))
    for name, tokens, on in keys:
        if on:
            with_it, without = found[name, tokens, True], found[name, tokens, False]
            assert torch.less(with_it["peak_bytes"], without["peak_bytes"]), name
            assert torch.less(with_it["forward"], without["forward"]), name
            assert torch.less(with_it["backward"], without["backward"]), name
    # Memory grows with the length, not with its square.
    small, large = (found["measure_attention", n, True]["peak_bytes"].item() for n in (256, 512))
    assert large <= 2.1 * small
    small, large = (found["measure_attention", n, False]["peak_bytes"].item() for n in (256, 512))
    assert large > 3 * small
    assert found["measure_attention", 512, True]["forward"] == 1
    assert found["measure_rmsnorm", 256, True]["forward"] == 1
