"""Checks over several tensors that reference kernels share, beside those of `rules`."""

from typing import NoReturn

from torch import Tensor

from ascend_sim.kernels.rules import FLOATS, require


def refuse(operator: str, rule: str) -> NoReturn:
    """Raise the RuntimeError a refused call gets; `rule` says what the document asks for."""
    raise RuntimeError(f"npu::{operator}: {rule}")


def require_float(operator: str, **tensors: Tensor | None) -> None:
    """Refuse tensors that are not float16, bfloat16 or float32; None is skipped."""
    for name, tensor in tensors.items():
        if tensor is not None and tensor.dtype not in FLOATS:
            refuse(operator, f"{name} must be float16, bfloat16 or float32, not {tensor.dtype}")


def require_same_dtype(operator: str, **tensors: Tensor | None) -> None:
    """Refuse tensors whose dtypes differ; None is skipped."""
    found = {name: tensor.dtype for name, tensor in tensors.items() if tensor is not None}
    if len(set(found.values())) > 1:
        refuse(operator, f"{', '.join(found)} must have one dtype, not {list(found.values())}")


def require_same_shape(operator: str, **tensors: Tensor) -> None:
    """Refuse tensors whose shapes differ."""
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if len(set(found.values())) > 1:
        refuse(operator, f"{', '.join(found)} must have one shape, not {list(found.values())}")


def resolve_dim(operator: str, dim: int, num_dims: int) -> int:
    """Return `dim` counted from the front, refused outside [-num_dims, num_dims)."""
    require(
        operator,
        -num_dims <= dim < num_dims,
        f"dim must be in [{-num_dims}, {num_dims - 1}], not {dim}",
    )
    return dim % num_dims
