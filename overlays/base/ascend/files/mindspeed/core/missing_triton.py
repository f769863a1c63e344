"""Stand-ins for `triton` and `triton.language` where Triton is not installed.

With them a module that defines Triton kernels can be imported, and launching one of its kernels
raises an ImportError that names the kernel. Nothing here imports Triton or enters `sys.modules`:
only the module that takes the stand-ins sees them.
"""

import functools
from collections.abc import Callable
from typing import Any, NoReturn


class MissingKernel:
    """A function that was to be a Triton kernel. It may be decorated, indexed and passed around."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)

    def __getitem__(self, grid: Any) -> "MissingKernel":
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise ImportError(
            f"{self.__module__}.{self.__qualname__} is a Triton kernel, "
            "and Triton is not installed",
            name="triton",
        )

    run = warmup = __call__


class Config:
    """One choice of an autotuned kernel, with the attributes that host code reads."""

    def __init__(
        self, kwargs: dict[str, Any], num_warps: int = 4, num_stages: int = 2, **rest: Any
    ):
        self.kwargs = kwargs
        self.num_warps = num_warps
        self.num_stages = num_stages
        vars(self).update(rest)


class _Missing:
    """A name of Triton's that has no stand-in: an annotation may hold it, calling it raises."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> "_Missing":
        if name.startswith("_"):  # copy, pickle and inspect ask for these
            raise AttributeError(name)
        return _Missing(f"{self._name}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise ImportError(f"{self._name} needs Triton, which is not installed", name="triton")


class _Triton(_Missing):
    """The part of `triton` that module bodies and the host side of a launch use."""

    __version__ = "0.0.0"
    Config = Config

    @staticmethod
    def jit(function: Callable[..., Any] | None = None, **options: Any) -> Any:
        """`@triton.jit`, with or without arguments."""
        return MissingKernel if function is None else MissingKernel(function)

    @staticmethod
    def _decorate(*args: Any, **kwargs: Any) -> Callable[[MissingKernel], MissingKernel]:
        return lambda kernel: kernel

    autotune = heuristics = _decorate

    # Real, so that the failure comes from the launch, which can name the kernel.
    @staticmethod
    def cdiv(x: int, y: int) -> int:
        """x / y, rounded up."""
        return -(-x // y)

    @staticmethod
    def next_power_of_2(n: int) -> int:
        """The smallest power of two that is not below n."""
        return 1 << max(n - 1, 0).bit_length()


triton = _Triton("triton")
tl = _Missing("triton.language")
