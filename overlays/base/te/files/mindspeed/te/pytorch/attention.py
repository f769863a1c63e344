"""DotProductAttention with TransformerEngine's constructor and keys: choose an implementation, and
call it.

`attention_backend` chooses, as with TransformerEngine: `auto` is Ascend's operator where it can
compute what is asked, else plain torch (`dense_attention`); `flash` and `fused` are the operator
or an error; `unfused` is plain torch. The operator needs an NPU and the overlay
attention/flash-attention.

Dims: s queries, t keys, b batch, n query heads, g key heads, d key width, v value width, T tokens
of all packed sequences.
"""

import importlib
import importlib.util
import math
import os
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
from mindspeed.te.pytorch.dense_attention import Kind, Mask, attend_dense, make_kind, make_masked
from mindspeed.te.pytorch.module import TransformerEngineModule
from mindspeed.te.pytorch.operator_attention import (
    FLASH,
    attend_operator,
    attend_packed_by_operator,
)
from mindspeed.te.pytorch.packed import Packed, attend_packed
from mindspeed.te.refusal import refuse, refuse_unsupported

_CORE_ATTENTION_KEY = "core_attention._extra_state"


class DotProductAttention(TransformerEngineModule):
    """Attention between queries, keys and values; has no parameters."""

    def __init__(
        self,
        num_attention_heads: int,
        kv_channels: int | tuple[int, int],
        num_gqa_groups: int | None = None,
        attention_dropout: float = 0.0,
        qkv_format: str = "sbhd",
        attn_mask_type: str = "causal",
        window_size: tuple[int, int] | None = None,
        sequence_parallel: bool = False,
        tp_size: int = 1,
        get_rng_state_tracker: Any = None,
        tp_group: torch.distributed.ProcessGroup | None = None,
        layer_number: int | None = None,
        attention_type: str = "self",
        cp_group: Any = None,
        cp_global_ranks: Any = None,
        cp_stream: Any = None,
        cp_comm_type: str = "p2p",
        softmax_scale: float | None = None,
        **unsupported: Any,
    ) -> None:
        _refuse_options(self, unsupported)
        super().__init__()
        self._set_parallelism(tp_group, tp_size, None)
        if num_attention_heads % (num_gqa_groups or num_attention_heads):
            raise ValueError(
                f"{num_attention_heads} heads cannot be shared by {num_gqa_groups} GQA groups"
            )
        self.num_attention_heads = num_attention_heads
        self.num_gqa_groups = num_gqa_groups or num_attention_heads
        self.num_gqa_groups_per_partition = self.num_gqa_groups // self.tp_size
        widths = (kv_channels, kv_channels) if isinstance(kv_channels, int) else kv_channels
        self.hidden_size_per_attention_head_k, self.hidden_size_per_attention_head_v = widths
        self.softmax_scale = 1 / math.sqrt(widths[0]) if softmax_scale is None else softmax_scale
        self.qkv_format = qkv_format
        self.attn_mask_type = make_kind(attn_mask_type).name
        self.window_size = window_size
        self.attention_type = attention_type
        self.attention_dropout = attention_dropout
        self.layer_number = layer_number or 1
        # Heads differ between tensor-parallel ranks, so their dropout must.
        self.get_rng_state_tracker = None if sequence_parallel else get_rng_state_tracker
        self.set_context_parallel_group(cp_group, cp_global_ranks, cp_stream, cp_comm_type)
        self.register_load_state_dict_post_hook(_forgive_missing_extra_state)

    def set_context_parallel_group(
        self, cp_group: Any, cp_global_ranks: Any, cp_stream: Any, cp_comm_type: str = "p2p"
    ) -> None:
        """Say over which ranks the sequence is split.

        Raises:
            RuntimeError: more than one, and this build has no overlay context-parallel/core.
            ValueError: settings that it refuses.
        """
        groups = cp_group if isinstance(cp_group, (list, tuple)) else [cp_group]
        self.is_spread = any(group is not None and group.size() > 1 for group in groups)
        if self.is_spread:
            _load_spread().confirm_spread(self, cp_group)
        self.cp_group = cp_group
        self.cp_global_ranks = cp_global_ranks
        self.cp_stream = cp_stream
        self.cp_comm_type = cp_comm_type

    def forward(
        self,
        query_layer: torch.Tensor,
        key_layer: torch.Tensor,
        value_layer: torch.Tensor,
        attention_mask: Mask = None,
        qkv_format: str | None = None,
        cu_seqlens_q: torch.Tensor | None = None,
        cu_seqlens_kv: torch.Tensor | None = None,
        cu_seqlens_q_padded: torch.Tensor | None = None,
        cu_seqlens_kv_padded: torch.Tensor | None = None,
        max_seqlen_q: int | None = None,
        max_seqlen_kv: int | None = None,
        attn_mask_type: str | None = None,
        window_size: tuple[int, int] | None = None,
        checkpoint_core_attention: bool = False,
        core_attention_bias_type: str = "no_bias",
        core_attention_bias: torch.Tensor | None = None,
        **unsupported: Any,
    ) -> torch.Tensor:
        """Attend.

        Args:
            query_layer: [s, b, n, d]; with qkv_format bshd [b, s, n, d]; with thd [T, n, d].
            key_layer: [t, b, g, d], and so on.
            value_layer: [t, b, g, v], and so on.
            attention_mask: for padding and arbitrary masks, see `make_masked`.
            qkv_format: sbhd, bshd or thd (packed sequences).
            cu_seqlens_q: [k + 1], where each of k packed sequences starts, without padding.
            cu_seqlens_kv: the same of the keys.
            cu_seqlens_q_padded: [k + 1], where their places start, with padding.
            cu_seqlens_kv_padded: the same of the keys.
            max_seqlen_q: not needed.
            max_seqlen_kv: not needed.
            attn_mask_type: in place of the constructor's.
            window_size: in place of the constructor's.
            checkpoint_core_attention: not supported, Megatron does this itself.
            core_attention_bias_type: no_bias, or post_scale_bias.
            core_attention_bias: added to the scores; broadcasts to [b, n, s, t].
            unsupported: anything else that TransformerEngine takes; must be None or False.

        Returns:
            [s, b, n * v]; with bshd [b, s, n * v]; with thd [T, n * v].

        Raises:
            ValueError: a mask or lengths that do not fit.
            RuntimeError: something that this module does not compute, or the operator is asked for
                by name and cannot.
        """
        asked = {name: value for name, value in unsupported.items() if value not in (None, False)}
        asked.pop("fast_zero_fill", None)
        if asked or checkpoint_core_attention or core_attention_bias_type not in _BIAS_TYPES:
            asked_for = [
                *asked,
                *(["checkpoint_core_attention"] if checkpoint_core_attention else []),
            ]
            refuse(f"DotProductAttention with {', '.join(asked_for) or core_attention_bias_type}")
        layout = qkv_format or self.qkv_format
        kind = make_kind(attn_mask_type or self.attn_mask_type, window_size or self.window_size)
        if self.is_spread:
            return self._attend_spread(
                query_layer, key_layer, value_layer, attention_mask, core_attention_bias, kind,
                layout, (cu_seqlens_q, cu_seqlens_q_padded),
            )  # fmt: skip
        if layout == "thd":
            tables = cu_seqlens_q, cu_seqlens_kv, cu_seqlens_q_padded, cu_seqlens_kv_padded
            packed = Packed.read(tables, num_queries=len(query_layer), num_keys=len(key_layer))
            return self._attend_packed(query_layer, key_layer, value_layer, packed, kind)
        if layout not in ("sbhd", "bshd"):
            raise ValueError(f"qkv_format must be sbhd, bshd or thd, not {layout}")
        inputs = (query_layer, key_layer, value_layer)
        if layout == "bshd":
            inputs = tuple(x.transpose(0, 1) for x in inputs)  # type: ignore[assignment]
        out = self._attend(*inputs, attention_mask, core_attention_bias, kind)
        return out.transpose(0, 1).contiguous() if layout == "bshd" else out

    def _attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: Mask,
        bias: torch.Tensor | None,
        kind: Kind,
    ) -> torch.Tensor:
        sizes = {"num_queries": len(query), "num_keys": len(key), "batch": query.shape[1]}
        if self._use_operator(query, value, mask=mask, bias=bias, kind=kind):
            with self._fork():
                return attend_operator(query, key, value, kind=kind, mask=mask, **self._settings())
        masked = make_masked(kind, mask, device=query.device, **sizes)
        layer = self._find_layer_scale()
        with self._fork():
            return attend_dense(
                query, key, value, masked=masked, bias=bias, layer_number=layer, **self._settings()
            )

    def _attend_packed(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        packed: Packed,
        kind: Kind,
    ) -> torch.Tensor:
        if self._use_operator(query, value, mask=None, bias=None, kind=kind):
            with self._fork():
                return attend_packed_by_operator(
                    query, key, value, packed=packed, kind=kind, **self._settings()
                )
        with self._fork():
            return attend_packed(query, key, value, packed=packed, kind=kind, **self._settings())

    def _attend_spread(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: Mask,
        bias: torch.Tensor | None,
        kind: Kind,
        layout: str,
        tables: tuple[torch.Tensor | None, torch.Tensor | None],
    ) -> torch.Tensor:
        """Over the ranks of `cp_group`, by the overlays context-parallel."""
        if bias is not None or layout not in ("sbhd", "thd"):
            raise ValueError(
                "context parallelism takes no core_attention_bias, and qkv_format sbhd or thd, not "
                f"{layout}"
            )
        out: torch.Tensor = _load_spread().attend_spread(
            self,
            query,
            key,
            value,
            mask=mask,
            kind=kind.name,
            random_state=self._fork(),
            tables=tables if layout == "thd" else None,
            **self._settings(),
        )
        return out

    def _settings(self) -> dict[str, Any]:
        return {
            "scale": self.softmax_scale,
            "dropout": self.attention_dropout if self.training else 0.0,
        }

    def _find_layer_scale(self) -> int:
        """TransformerEngine reads this from the environment, where upstream's wrapper checks it."""
        scaled = os.getenv("NVTE_APPLY_QK_LAYER_SCALING", "0") == "1"
        return self.layer_number if scaled else 1

    def _fork(self) -> AbstractContextManager[Any]:
        if self.get_rng_state_tracker is None or not (self.training and self.attention_dropout):
            return nullcontext()
        forked: AbstractContextManager[Any] = self.get_rng_state_tracker().fork()
        return forked

    def _use_operator(
        self,
        query: torch.Tensor,
        value: torch.Tensor,
        *,
        mask: Mask,
        bias: torch.Tensor | None,
        kind: Kind,
    ) -> bool:
        backend = _find_backend(getattr(self, "config", None))
        if backend == "unfused":
            return False
        obstacle = _find_obstacle(query, value, mask=mask, bias=bias, kind=kind)
        if obstacle and backend != "auto":
            raise RuntimeError(
                f"attention_backend={backend} asks for Ascend's operator: {obstacle}"
            )
        return obstacle is None


_SPREAD = "mindspeed.core.context_parallel.te_wiring"


def _load_spread() -> Any:
    """What computes attention over a sequence that is spread over ranks.

    Raises:
        RuntimeError: it is not in this build.
    """
    try:
        return importlib.import_module(_SPREAD)
    except ModuleNotFoundError as error:
        if error.name is None or not _SPREAD.startswith(error.name):
            raise
        refuse("context parallelism in TEDotProductAttention without context-parallel/core")


_OPTIONS_OF_LOCAL_SPEC = ("use_fusion_attn_v2", "alibi_fusion_attn_type")
_BIAS_TYPES = ("no_bias", "post_scale_bias")


def _refuse_options(module: Any, unsupported: dict[str, Any]) -> None:
    vanilla = {"softmax_type": "vanilla", "return_max_logit": False, "num_splits": None}
    rest = {k: v for k, v in unsupported.items() if k not in vanilla or v != vanilla[k]}
    for name in vanilla:
        if name in rest:
            refuse(f"DotProductAttention with {name}={rest[name]}")
    refuse_unsupported(module, rest)


def _find_backend(config: Any) -> str:
    """`attention_backend` of the config: auto, flash, fused or unfused.

    Raises:
        ValueError: local, which is the other layer spec, or an option that is for that one only.
    """
    for field in _OPTIONS_OF_LOCAL_SPEC:
        value = getattr(config, field, None)
        if value is not None and value is not False:
            raise ValueError(
                f"{field}={value!r} is for the local layer spec; a layer spec with "
                "TransformerEngine's names takes use_flash_attn"
            )
    backend = getattr(config, "attention_backend", None)
    name: str = "auto" if backend is None else getattr(backend, "name", str(backend))
    if name == "local":
        raise ValueError(
            "attention_backend=local is the attention of the local layer spec; a layer spec with "
            "TransformerEngine's names takes auto, flash, fused or unfused"
        )
    if name == "auto" and getattr(config, "use_flash_attn", False):
        return "flash"
    return name


@cache
def _has_operator() -> bool:
    try:
        return importlib.util.find_spec(FLASH) is not None
    except ModuleNotFoundError:
        return False


def _find_obstacle(
    query: torch.Tensor,
    value: torch.Tensor,
    *,
    mask: Mask,
    bias: torch.Tensor | None,
    kind: Kind,
) -> str | None:
    """Why Ascend's operator cannot compute this; None where it can."""
    if query.device.type != "npu":
        return f"it needs tensors on an NPU, not on {query.device}"
    if not _has_operator():
        return "this build has no overlay attention/flash-attention"
    if bias is not None:
        return "it takes no attention_bias"
    if value.shape[-1] > query.shape[-1]:
        return f"values are wider ({value.shape[-1]}) than keys ({query.shape[-1]})"
    if kind.name == "arbitrary" and isinstance(mask, torch.Tensor) and mask.shape[-3:-2] != (1,):
        return "the mask differs between heads"
    return None


def _forgive_missing_extra_state(module: Any, keys: Any) -> None:
    """Checkpoints of the local layer spec, and old ones of TransformerEngine, lack this key."""
    keys.missing_keys[:] = [key for key in keys.missing_keys if _CORE_ATTENTION_KEY not in key]
