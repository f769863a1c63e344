"""Compute one layer's attention by the chosen algorithm."""

from typing import Protocol

from mindspeed.core.context_parallel.choice import Choice
from mindspeed.core.context_parallel.groups import Groups
from mindspeed.core.context_parallel.parts import load_part
from mindspeed.core.context_parallel.problem import Problem
from torch import Tensor


class Attention(Protocol):
    """An algorithm: attention of this rank's rows over the whole sequence."""

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, problem: Problem, *, choice: Choice, groups: Groups
    ) -> Tensor:
        """Compute it.

        Args:
            q: [l, b, n, d], packed [l, n, d].
            k: [l, b, g, d].
            v: [l, b, g, v].
            problem: over the ranks of `groups.whole`.
            choice: what was chosen for this layer.
            groups: its communicators.

        Returns:
            [l, b, n, v], packed [l, n, v].
        """
        ...


def load_attention(choice: Choice) -> Attention:
    """The function of the chosen algorithm, and a check that all of its parts are in this build.

    Raises:
        ValueError: an overlay is not.
    """
    if choice.window > 1:
        load_part("double_ring", "schedule_double_ring", overlay="double-ring-cp")
    if choice.fused_merge:
        load_part("fused_merge", "merge_fused_", overlay="fused-ring-attention-update")
    row = choice.algorithm
    found: Attention = load_part(row.module, row.function, overlay=row.overlay)
    return found
