"""`transformer_engine.pytorch.distributed`: activation recomputation, and tracked random states."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    distribute_saved_activations: bool = False,
    get_rng_state_tracker: Callable[[], Any] | None = None,
    tp_group: torch.distributed.ProcessGroup | None = None,
    **kwargs: Any,
) -> Any:
    """Call `function` without keeping its activations; compute them anew in the backward pass.

    By Megatron's own checkpoint function, which restores every random state that Megatron tracks.

    Args:
        function: what to call.
        args: its positional arguments.
        distribute_saved_activations: split the first argument over the tensor-parallel ranks.
        get_rng_state_tracker: not needed: Megatron's own tracker is known.
        tp_group: not needed: Megatron's own group is known.
        kwargs: its keyword arguments.
    """
    from megatron.core.tensor_parallel.random import checkpoint as recompute

    def call(*positional: Any) -> Any:
        return function(*positional, **kwargs)

    return recompute(call, distribute_saved_activations, *args)


class CudaRNGStatesTracker:
    """Random states of the device by name."""

    def __init__(self) -> None:
        self.states_: dict[str, torch.Tensor] = {}
        self.seeds_: set[int] = set()

    def reset(self) -> None:
        """Forget every state."""
        self.states_ = {}
        self.seeds_ = set()

    def get_states(self) -> dict[str, torch.Tensor]:
        """The states by name."""
        return dict(self.states_)

    def set_states(self, states: dict[str, torch.Tensor]) -> None:
        """Replace the states."""
        self.states_ = states

    def add(self, name: str, seed: int) -> None:
        """Make a new state from a seed.

        Raises:
            RuntimeError: the name or the seed is there already.
        """
        if seed in self.seeds_:
            raise RuntimeError(f"seed {seed} already exists")
        if name in self.states_:
            raise RuntimeError(f"state {name} already exists")
        self.seeds_.add(seed)
        before = torch.cuda.get_rng_state()
        torch.cuda.manual_seed(seed)
        self.states_[name] = torch.cuda.get_rng_state()
        torch.cuda.set_rng_state(before)

    @contextmanager
    def fork(self, name: str = "model-parallel-rng") -> Iterator[None]:
        """Draw from the state `name` inside.

        Raises:
            KeyError: no such state.
        """
        if name not in self.states_:
            raise KeyError(f"there is no random state {name}")
        before = torch.cuda.get_rng_state()
        torch.cuda.set_rng_state(self.states_[name])
        try:
            yield
        finally:
            self.states_[name] = torch.cuda.get_rng_state()
            torch.cuda.set_rng_state(before)
