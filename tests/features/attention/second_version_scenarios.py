"""The scenarios of flash attention, by the second version of the operator."""

from typing import Any

import torch

from features.attention import attention_scenarios
from features.parts import Named


def run_core(dtype: torch.dtype, *, second: bool = False, **options: Any) -> Named:
    """See `attention_scenarios.run_core`."""
    return attention_scenarios.run_core(dtype, **_choose(second), **options)


def run_long(dtype: torch.dtype, *, second: bool = False, **options: Any) -> Named:
    """See `attention_scenarios.run_long`."""
    return attention_scenarios.run_long(dtype, **_choose(second), **options)


def run_packed(dtype: torch.dtype, *, second: bool = False, **options: Any) -> Named:
    """See `attention_scenarios.run_packed`."""
    return attention_scenarios.run_packed(dtype, **_choose(second), **options)


def run_gpt(dtype: torch.dtype, *, second: bool = False, **options: Any) -> Named:
    """See `attention_scenarios.run_gpt`."""
    return attention_scenarios.run_gpt(dtype, **_choose(second), **options)


def _choose(second: bool) -> dict[str, Any]:
    return {"flash": True, "use_fusion_attn_v2": True} if second else {}
