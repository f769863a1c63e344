"""aten operators that torch_npu computes whole, above autograd, and that compose of others.

torch_npu registers its own kernels for these under the device's autograd key too; here both keys
get a composition of operators that have device kernels, so gradients follow from those.
"""

from typing import Any

import torch
from torch import Tensor

KERNELS: dict[str, Any] = {}
"""aten operator with overload to its composition."""


def one_hot(self: Tensor, num_classes: int = -1) -> Tensor:
    """int64 class numbers [...] to 0/1 rows [..., num_classes]; -1 takes the largest class + 1.

    Raises:
        RuntimeError: a class number is negative or not below `num_classes`.
    """
    if self.numel() and int(self.min()) < 0:
        raise RuntimeError("Class values must be non-negative.")
    if num_classes == -1:
        num_classes = int(self.max()) + 1
    elif self.numel() and int(self.max()) >= num_classes:
        raise RuntimeError("Class values must be smaller than num_classes.")
    result = self.new_zeros((*self.shape, num_classes))
    return result.scatter_(-1, self.unsqueeze(-1), 1)


def fill_diagonal_(self: Tensor, fill_value: float, wrap: bool = False) -> Tensor:
    """Fill the main diagonal; with `wrap` a tall matrix has one every columns + 1 rows."""
    if wrap and self.dim() == 2 and self.shape[0] > self.shape[1] + 1:
        rows, columns = self.shape
        for top in range(0, rows, columns + 1):
            fill_diagonal_(self[top : top + columns], fill_value)
        return self
    count, step = min(self.shape), sum(self.stride())
    self.as_strided((count,), (step,), self.storage_offset()).fill_(fill_value)
    return self


def slogdet(self: Tensor) -> tuple[Tensor, Tensor]:
    """Sign and logarithm of the determinant's absolute value."""
    sign, logarithm = torch.linalg.slogdet(self)
    return sign, logarithm


KERNELS.update({"one_hot": one_hot, "fill_diagonal_": fill_diagonal_, "slogdet": slogdet})
