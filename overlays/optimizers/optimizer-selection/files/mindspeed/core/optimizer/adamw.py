"""AdamW in fused steps, for Megatron's optimizers.

    m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
    p = p - lr (wd p + (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps))

(arXiv 1711.05101.) `aten::_fused_adamw_` computes it in one launch, for a list of parameters or for
one. States and checkpoints are those of `torch.optim.AdamW`: exp_avg, exp_avg_sq, and step, a
number for each parameter, which stays on the device.
"""

from collections.abc import Callable
from typing import Any

import torch

_OPTION = "--optimizer-selection (optimizer_selection)"


class FusedTorchAdamW(torch.optim.AdamW):
    """`torch.optim.AdamW(fused=True)`: one launch for all parameters of a dtype."""

    def __init__(self, params: Any, **keywords: Any) -> None:
        super().__init__(params, fused=True, **keywords)


class FusedAdamW(FusedTorchAdamW):
    """The same operator for one parameter at a time, which needs no list of all their tensors."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One step of each parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                for name in ("exp_avg", "exp_avg_sq"):
                    if name not in state:
                        state[name] = torch.zeros_like(parameter)
                if "step" not in state:
                    state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
                state["step"] += 1
                torch._fused_adamw_(
                    [parameter],
                    [parameter.grad],
                    [state["exp_avg"]],
                    [state["exp_avg_sq"]],
                    [],
                    [state["step"]],
                    lr=group["lr"],
                    beta1=beta1,
                    beta2=beta2,
                    weight_decay=group["weight_decay"],
                    eps=group["eps"],
                    amsgrad=False,
                    maximize=False,
                )
        return loss


_CHOICES = {"fused_adamw": FusedAdamW, "fused_torch_adamw": FusedTorchAdamW}


def choose(config: Any, inner: Any) -> type[torch.optim.Optimizer]:
    """The Adam that an OptimizerConfig asks for; at the hook point `optimizer`.

    Raises:
        RuntimeError: TransformerEngine or apex is there, whose Adam Megatron's checkpoints expect.
    """
    if inner is not torch.optim.AdamW:
        raise RuntimeError(
            f"{_OPTION}={config.optimizer_selection}: Megatron takes {inner.__module__}."
            f"{inner.__name__} here, and its checkpoints expect the states of that"
        )
    return _CHOICES[config.optimizer_selection]
