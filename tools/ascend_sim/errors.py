"""The errors of the simulated device."""


class SimulatorError(RuntimeError):
    """The simulated device cannot be set up or used as asked."""


class NoKernelError(SimulatorError, NotImplementedError):
    """An operator was called that has no kernel on the simulated device."""

    def __init__(self, operator: str) -> None:
        """Name the operator that was called, as `namespace::name.overload`."""
        super().__init__(
            f"{operator} has no kernel on the simulated Ascend device; `python -m ascend_sim ops` "
            "lists those that have, docs/simulated-ascend.md says how to add one"
        )
        self.operator = operator

    def __reduce__(self) -> tuple[type["NoKernelError"], tuple[str]]:
        return NoKernelError, (self.operator,)
