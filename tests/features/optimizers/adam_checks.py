"""What is checked of the option without an NPU."""

from typing import Any


def find_unrefused_configs() -> list[str]:
    """Configs that should be a ValueError that names the culprit, and are not."""
    import dataclasses

    from megatron.core.optimizer import OptimizerConfig

    known = {field.name for field in dataclasses.fields(OptimizerConfig)}
    bad: list[dict[str, Any]] = [
        {"optimizer": "sgd"},
        {"optimizer_cpu_offload": True},
        {"decoupled_weight_decay": False},
    ]
    problems = []
    for changes in bad:
        (culprit,) = changes
        if culprit not in known:
            continue
        try:
            OptimizerConfig(optimizer_selection="fused_adamw", lr=0.1, **changes)
        except ValueError as error:
            if culprit not in str(error):
                problems.append(f"{changes}: {error}")
        else:
            problems.append(f"{changes}: accepted")
    return problems


def choose_beside_another_adam() -> str:
    """What is said where Megatron found another Adam than torch's AdamW."""
    from types import SimpleNamespace

    import torch
    from mindspeed.core.optimizer.adamw import choose

    try:
        choose(SimpleNamespace(optimizer_selection="fused_adamw"), torch.optim.Adam)
    except RuntimeError as error:
        return str(error)
    return "chosen"
