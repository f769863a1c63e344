"""What the modules that stand in for TransformerEngine's share: parameters and checkpoint state.

Facts (attributes of parameters, extra state, initialisation): TransformerEngine 2.0,
`transformer_engine/pytorch/module/base.py`, as far as upstream's wrappers and optimizers read them.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

InitMethod = Callable[[torch.Tensor], Any]


def fill_with(value: float) -> InitMethod:
    """An initialisation with a constant."""
    return lambda tensor: torch.nn.init.constant_(tensor, value)


class ExtraState(torch.nn.Module):
    """A module with TransformerEngine's key `_extra_state` in its state dict.

    What TransformerEngine keeps there is the scaling state of low precision. Without low precision
    it is an empty byte tensor, which is what is written here. What is read may be anything that a
    version of TransformerEngine wrote (None, bytes, a file object); it says nothing about the
    parameters.
    """

    def get_extra_state(self) -> torch.Tensor:
        """An empty byte tensor."""
        return torch.empty(0, dtype=torch.uint8)

    def set_extra_state(self, state: Any) -> None:
        """Accept and forget."""


class TransformerEngineModule(ExtraState):
    """Parameters with their initialisation, and the tensor-parallel group.

    `fp8`, `fp8_calibration` and `fp8_meta` are read by upstream's checkpoint code.
    """

    tp_group: torch.distributed.ProcessGroup | None = None

    def __init__(self) -> None:
        super().__init__()
        self.fp8 = False
        self.fp8_calibration = False
        self.fp8_meta: dict[str, Any] = {"fp8_checkpoint": False}
        self._init_methods: dict[str, tuple[InitMethod, Callable[[], Any] | None]] = {}

    def init_fp8_metadata(self, num_gemms: int = 1) -> None:
        """Nothing: there is no low precision."""

    def set_tensor_parallel_group(self, tp_group: torch.distributed.ProcessGroup | None) -> None:
        """Set the group, where it was not known at construction."""
        self.tp_group = tp_group

    def _set_parallelism(
        self, tp_group: torch.distributed.ProcessGroup | None, tp_size: int, mode: str | None
    ) -> None:
        """Take the group, its size, and how the weight is split over it.

        Raises:
            ValueError: another mode than column, row and None.
        """
        if mode not in ("column", "row", None):
            raise ValueError(f"parallel_mode must be column, row or None, not {mode!r}")
        self.tp_group = tp_group
        self.tp_size = tp_size if tp_group is None else tp_group.size()
        self.parallel_mode = mode

    def _add_parameter(
        self,
        name: str,
        shape: tuple[int, ...],
        *,
        init_method: InitMethod,
        dtype: torch.dtype,
        device: Any,
        get_rng_state_tracker: Callable[[], Any] | None = None,
    ) -> torch.nn.Parameter:
        """Register a parameter and initialise it, unless on the meta device."""
        self._init_methods[name] = init_method, get_rng_state_tracker
        parameter = torch.nn.Parameter(torch.empty(shape, dtype=dtype, device=device))
        self.register_parameter(name, parameter)
        if not parameter.is_meta:
            self._initialize(name)
        return parameter

    def reset_parameters(self, defer_init: bool = False) -> None:
        """Initialise every parameter anew; those on the meta device get memory first."""
        if defer_init:
            return
        for name in self._init_methods:
            parameter = self._parameters[name]
            assert parameter is not None
            if parameter.is_meta:
                new = torch.nn.Parameter(torch.empty_like(parameter, device="cuda"))
                vars(new).update(vars(parameter))
                self.register_parameter(name, new)
            self._initialize(name)

    def _initialize(self, name: str) -> None:
        init_method, get_tracker = self._init_methods[name]
        with torch.no_grad(), self._fork_random_state(get_tracker):
            init_method(self._parameters[name])  # type: ignore[arg-type]

    def _fork_random_state(
        self, get_tracker: Callable[[], Any] | None
    ) -> AbstractContextManager[Any]:
        if get_tracker is None:
            return nullcontext()
        name = getattr(self, "rng_tracker_name", None)
        forked: AbstractContextManager[Any] = get_tracker().fork(*([name] if name else []))
        return forked


def mark_partitioned(parameter: torch.nn.Parameter, *, dim: int) -> None:
    """Say that tensor-parallel ranks hold slices of dimension `dim`, in Megatron's attributes."""
    parameter.tensor_model_parallel = True  # type: ignore[attr-defined]
    parameter.partition_dim = dim  # type: ignore[attr-defined]
    parameter.partition_stride = 1  # type: ignore[attr-defined]


def divide(total: int, parts: int) -> int:
    """Raises ValueError where there is a remainder."""
    if total % parts:
        raise ValueError(f"{total} features cannot be split over {parts} tensor-parallel ranks")
    return total // parts
