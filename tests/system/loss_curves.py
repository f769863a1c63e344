"""Loss curves of a dense and an MoE model: `python tests/system/loss_curves.py` writes them anew.

Each trains 30 steps on the simulated device with Megatron's DDP and optimizer and the features of
`training_scenarios.OPTIONS`, in fp32 on one rank. What is stored is what a run gave; a change of it
is a change of what training computes, and wants a reason.
"""

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests")]
    os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")

from features.cases import OVERLAYS  # noqa: E402  (after the paths are set)
from harness.runner import run_on_device  # noqa: E402
from harness.trees import COMPARED_RELEASES, Trees  # noqa: E402
from harness.worker import Scenario  # noqa: E402

STORED = Path(__file__).with_name("loss_curves.json")
STEPS = 30
MODELS: dict[str, dict[str, Any]] = {
    "dense": {},
    "moe": {
        "num_moe_experts": 4,
        "moe_router_topk": 2,
        "moe_router_load_balancing_type": "aux_loss",
        "moe_aux_loss_coeff": 0.01,
        "moe_token_dispatcher_type": "alltoall",
    },
}


def run_models(trees: Trees, tag: str) -> dict[str, list[float]]:
    """The loss of each step, by model."""
    scenarios = [
        Scenario(
            "features.training_scenarios:train_by_megatron",
            tuple({"on": True, "distributed": False, "steps": STEPS, **changes}.items()),
        )
        for changes in MODELS.values()
    ]
    overlays = (*OVERLAYS, "fusions/fused-swiglu", "base/optimizers", "base/te")
    found = run_on_device(trees.patched(tag, overlays), scenarios)[0]
    return {
        name: [round(loss, 6) for loss in named["losses"].tolist()]
        for name, named in zip(MODELS, found, strict=True)
    }


def main() -> None:
    """Write the curves of the releases that are compared."""
    with tempfile.TemporaryDirectory() as folder:
        trees = Trees(Path(folder))
        curves = {tag: run_models(trees, tag) for tag in COMPARED_RELEASES}
    lines = [
        f'  "{tag}": {{\n'
        + ",\n".join(f'    "{name}": {json.dumps(curve)}' for name, curve in found.items())
        + "\n  }"
        for tag, found in curves.items()
    ]
    STORED.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


if __name__ == "__main__":
    main()
