"""GroupedLinear with TransformerEngine's constructor, keys and parameter attributes.

    y_e = x_e W_e^T + b_e    for each expert e, x_e the next m_splits[e] tokens of x

Dims: t tokens, e experts on this rank, i input features, o output features.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from mindspeed.te.pytorch.module import (
    InitMethod,
    TransformerEngineModule,
    fill_with,
    mark_partitioned,
)
from mindspeed.te.pytorch.parallel import Group, accumulate_in_main_grad
from mindspeed.te.refusal import refuse_unsupported

Output = torch.Tensor | tuple[torch.Tensor, list[torch.Tensor]]


class GroupedLinear(TransformerEngineModule):
    """Products of many weights with consecutive parts of the tokens.

    Does not communicate: Megatron's token dispatchers gather and scatter around it, and the
    wrappers pass sizes that are divided already.
    """

    def __init__(
        self,
        num_gemms: int,
        in_features: int,
        out_features: int,
        sequence_parallel: bool = False,
        fuse_wgrad_accumulation: bool = False,
        tp_group: Group = None,
        tp_size: int = 1,
        get_rng_state_tracker: Callable[[], Any] | None = None,
        rng_tracker_name: str | None = None,
        init_method: InitMethod | None = None,
        bias: bool = True,
        return_bias: bool = False,
        params_dtype: torch.dtype | None = None,
        parallel_mode: str | None = None,
        device: Any = "cuda",
        ub_name: str | None = None,
        **unsupported: Any,
    ) -> None:
        refuse_unsupported(self, unsupported)
        super().__init__()
        self._set_parallelism(tp_group, tp_size, parallel_mode)
        if self.tp_size > 1 and parallel_mode is not None:
            raise ValueError(
                f"GroupedLinear does not communicate: parallel_mode {parallel_mode} with "
                f"{self.tp_size} tensor-parallel ranks"
            )
        self.num_gemms = num_gemms
        self.in_features = in_features
        self.out_features = out_features
        self.sequence_parallel = self.tp_size > 1 and sequence_parallel
        self.fuse_wgrad_accumulation = fuse_wgrad_accumulation
        self.use_bias = bias
        self.return_bias = return_bias
        self.apply_bias = bias and not return_bias
        self.ub_name = ub_name
        self.rng_tracker_name = rng_tracker_name
        self.get_rng_state_tracker = get_rng_state_tracker
        settings = {"dtype": params_dtype or torch.get_default_dtype(), "device": device}
        for index in range(num_gemms):
            self._add_expert(index, init_method or torch.nn.init.normal_, **settings)

    def _add_expert(self, index: int, init_method: InitMethod, **settings: Any) -> None:
        weight = self._add_parameter(
            f"weight{index}",
            (self.out_features, self.in_features),
            init_method=init_method,
            get_rng_state_tracker=self.get_rng_state_tracker,
            **settings,
        )
        mark_partitioned(weight, dim=1 if self.parallel_mode == "row" else 0)
        if not self.use_bias:
            setattr(self, f"bias{index}", torch.empty(0, **settings))
            return
        bias = self._add_parameter(
            f"bias{index}", (self.out_features,), init_method=fill_with(0.0), **settings
        )
        if self.parallel_mode == "row":
            bias.sequence_parallel = self.sequence_parallel  # type: ignore[attr-defined]
        elif self.parallel_mode == "column":
            mark_partitioned(bias, dim=0)

    def forward(
        self,
        inp: torch.Tensor,
        m_splits: Sequence[int] | torch.Tensor,
        is_first_microbatch: bool | None = None,
    ) -> Output:
        """Multiply each expert's tokens with its weight.

        Args:
            inp: [t, i], ordered by expert.
            m_splits: the number of tokens of each expert, t in all; 0 is allowed.
            is_first_microbatch: of no interest without low precision.

        Returns:
            [t, o]; with `return_bias` also the biases, not added.

        Raises:
            ValueError: not one number for each expert.
        """
        splits = m_splits.tolist() if isinstance(m_splits, torch.Tensor) else list(m_splits)
        if len(splits) != self.num_gemms:
            raise ValueError(f"m_splits has {len(splits)} numbers for {self.num_gemms} experts")
        weights: list[torch.Tensor] = [getattr(self, f"weight{k}") for k in range(self.num_gemms)]
        if self.fuse_wgrad_accumulation:
            weights = [accumulate_in_main_grad(weight) for weight in weights]
        biases: list[torch.Tensor] = [getattr(self, f"bias{k}") for k in range(self.num_gemms)]
        added = biases if self.apply_bias else [None] * self.num_gemms
        parts = inp.reshape(-1, self.in_features).split(splits)
        products = [F.linear(x, w, b) for x, w, b in zip(parts, weights, added, strict=False)]
        out = torch.cat(products).view(*inp.shape[:-1], self.out_features)
        return (out, biases) if self.return_bias else out
