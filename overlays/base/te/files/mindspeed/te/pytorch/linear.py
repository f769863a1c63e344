"""Linear and LayerNormLinear with TransformerEngine's constructors, keys and parameter attributes.

Dims: s sequence, b batch, i input features, o output features of this rank.
"""

from collections.abc import Callable
from typing import Any

import torch
from mindspeed.te.pytorch.module import (
    InitMethod,
    TransformerEngineModule,
    divide,
    fill_with,
    mark_partitioned,
)
from mindspeed.te.pytorch.norm import normalize, use_operator
from mindspeed.te.pytorch.parallel import Group, accumulate_in_main_grad, multiply
from mindspeed.te.refusal import refuse_unsupported

Output = torch.Tensor | tuple[torch.Tensor, torch.Tensor]


class _ParallelLinear(TransformerEngineModule):
    """The part that both have: weight, bias, and the product over tensor-parallel ranks."""

    weight: torch.nn.Parameter
    bias: torch.Tensor

    def _build_linear(
        self,
        in_features: int,
        out_features: int,
        *,
        tp_group: Group,
        tp_size: int,
        parallel_mode: str | None,
        sequence_parallel: bool,
        fuse_wgrad_accumulation: bool,
        bias: bool,
        return_bias: bool,
        ub_name: str | None,
    ) -> None:
        self._set_parallelism(tp_group, tp_size, parallel_mode)
        self.in_features = in_features
        self.out_features = out_features
        if parallel_mode == "column":
            self.out_features = divide(out_features, self.tp_size)
        elif parallel_mode == "row":
            self.in_features = divide(in_features, self.tp_size)
        self.sequence_parallel = self.tp_size > 1 and sequence_parallel
        self.fuse_wgrad_accumulation = fuse_wgrad_accumulation
        self.use_bias = bias
        self.return_bias = return_bias
        self.apply_bias = bias and not return_bias
        self.ub_name = ub_name

    def _add_weight_and_bias(
        self,
        init_method: InitMethod | None,
        get_rng_state_tracker: Callable[[], Any] | None,
        **settings: Any,
    ) -> None:
        weight = self._add_parameter(
            "weight",
            (self.out_features, self.in_features),
            init_method=init_method or torch.nn.init.normal_,
            get_rng_state_tracker=get_rng_state_tracker,
            **settings,
        )
        mark_partitioned(weight, dim=1 if self.parallel_mode == "row" else 0)
        if not self.use_bias:
            self.bias = torch.empty(0, **settings)  # TransformerEngine's way to say none
            return
        bias = self._add_parameter(
            "bias", (self.out_features,), init_method=fill_with(0.0), **settings
        )
        if self.parallel_mode == "row":
            bias.sequence_parallel = self.sequence_parallel  # type: ignore[attr-defined]
        elif self.parallel_mode == "column":
            mark_partitioned(bias, dim=0)

    def _multiply(self, x: torch.Tensor) -> Output:
        weight: torch.Tensor = self.weight
        if self.fuse_wgrad_accumulation:
            weight = accumulate_in_main_grad(weight)
        y = multiply(
            x,
            weight,
            self.bias if self.apply_bias else None,
            mode=self.parallel_mode,
            group=self.tp_group,
            size=self.tp_size,
            sequence_parallel=self.sequence_parallel,
        )
        return (y, self.bias) if self.return_bias else y


class Linear(_ParallelLinear):
    """y = x W^T + b."""

    def __init__(
        self,
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
        self.rng_tracker_name = rng_tracker_name
        self._build_linear(
            in_features,
            out_features,
            tp_group=tp_group,
            tp_size=tp_size,
            parallel_mode=parallel_mode,
            sequence_parallel=sequence_parallel,
            fuse_wgrad_accumulation=fuse_wgrad_accumulation,
            bias=bias,
            return_bias=return_bias,
            ub_name=ub_name,
        )
        dtype = params_dtype or torch.get_default_dtype()
        self._add_weight_and_bias(init_method, get_rng_state_tracker, dtype=dtype, device=device)

    def forward(self, inp: torch.Tensor, is_first_microbatch: bool | None = None) -> Output:
        """The product, over the tensor-parallel ranks.

        Args:
            inp: [s, b, i], the dtype of the weight.
            is_first_microbatch: of no interest without low precision.

        Returns:
            [s, b, o], see `multiply`; with `return_bias` also the bias, not added.
        """
        return self._multiply(inp)


class LayerNormLinear(_ParallelLinear):
    """y = norm(x) W^T + b; with sequence parallel ranks normalize their part before the gather."""

    layer_norm_weight: torch.nn.Parameter

    def __init__(
        self,
        in_features: int,
        out_features: int,
        eps: float = 1e-5,
        sequence_parallel: bool = False,
        fuse_wgrad_accumulation: bool = False,
        tp_group: Group = None,
        tp_size: int = 1,
        get_rng_state_tracker: Callable[[], Any] | None = None,
        init_method: InitMethod | None = None,
        bias: bool = True,
        normalization: str = "LayerNorm",
        return_bias: bool = False,
        params_dtype: torch.dtype | None = None,
        parallel_mode: str | None = None,
        return_layernorm_output: bool = False,
        return_layernorm_output_gathered: bool = False,
        zero_centered_gamma: bool = False,
        device: Any = "cuda",
        ub_name: str | None = None,
        **unsupported: Any,
    ) -> None:
        refuse_unsupported(self, unsupported)
        if return_layernorm_output or return_layernorm_output_gathered:
            raise ValueError("LayerNormLinear of mindspeed.te does not return its norm's output")
        if normalization not in ("LayerNorm", "RMSNorm"):
            raise ValueError(f"normalization must be LayerNorm or RMSNorm, not {normalization}")
        if parallel_mode == "row":
            raise ValueError(
                "LayerNormLinear cannot be split by its input features (parallel_mode row)"
            )
        super().__init__()
        self.eps = eps
        self.normalization = normalization
        self.zero_centered_gamma = zero_centered_gamma
        self.fused = normalization == "RMSNorm" and use_operator(getattr(self, "config", None))
        self._build_linear(
            in_features,
            out_features,
            tp_group=tp_group,
            tp_size=tp_size,
            parallel_mode=parallel_mode,
            sequence_parallel=sequence_parallel,
            fuse_wgrad_accumulation=fuse_wgrad_accumulation,
            bias=bias,
            return_bias=return_bias,
            ub_name=ub_name,
        )
        settings = {"dtype": params_dtype or torch.get_default_dtype(), "device": device}
        self._add_norm(**settings)
        self._add_weight_and_bias(init_method, get_rng_state_tracker, **settings)

    def _add_norm(self, **settings: Any) -> None:
        shape = (self.in_features,)
        gamma = fill_with(0.0 if self.zero_centered_gamma else 1.0)
        added = [self._add_parameter("layer_norm_weight", shape, init_method=gamma, **settings)]
        if self.normalization == "LayerNorm":
            zero = fill_with(0.0)
            added.append(
                self._add_parameter("layer_norm_bias", shape, init_method=zero, **settings)
            )
        else:
            self.layer_norm_bias = None
        for parameter in added:
            parameter.sequence_parallel = self.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, inp: torch.Tensor, is_first_microbatch: bool | None = None) -> Output:
        """The product of the normalized input, over the tensor-parallel ranks.

        Args:
            inp: [s, b, i]; with sequence parallel this rank's part of s.
            is_first_microbatch: of no interest without low precision.

        Returns:
            [s, b, o]; with `return_bias` also the bias, not added.
        """
        normalized = normalize(
            inp,
            self.layer_norm_weight,
            self.layer_norm_bias,
            kind=self.normalization,
            eps=self.eps,
            zero_centered_gamma=self.zero_centered_gamma,
            fused=self.fused,
        )
        return self._multiply(normalized)
