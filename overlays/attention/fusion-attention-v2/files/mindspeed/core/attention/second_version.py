"""Flash attention by npu_fusion_attention_v2: wiring for the local layer spec.

Masks, dropout, packed sequences and softmax offsets are those of the first version, see
`core_attention`. (Operator page: torch_npu API reference, `torch_npu.npu_fusion_attention_v2`.)
"""

from typing import Any

import torch
from mindspeed.core.attention.core_attention import attach_flash_attention, attend
from mindspeed.core.hooks import Attend
from mindspeed.core.operators import require_operator

_OPTION = "--use-fusion-attn-v2 (use_fusion_attn_v2)"


def attach_second_version(module: Any, inner: Attend | None) -> Attend:
    """The hook of this feature at DotProductAttention.

    Args:
        module: the DotProductAttention under construction.
        inner: what an earlier feature computes attention with; this one replaces it.

    Raises:
        RuntimeError: the operator cannot run on this machine.
        ValueError: what flash attention refuses of a module.
    """
    require_operator("npu_fusion_attention_v2", option=_OPTION)
    attach_flash_attention(module, inner)
    return attend_by_second_version


def attend_by_second_version(module: Any, *arguments: Any, **keywords: Any) -> torch.Tensor:
    """`core_attention.attend` with the second version of the operator.

    Raises:
        ValueError: what `attend` refuses, and a bottom-right mask over more queries than keys.
    """
    query, key = arguments[:2]
    kind = module.attn_mask_type.name
    if kind == "causal_bottom_right" and len(query) > len(key):
        raise ValueError(
            f"--use-fusion-attn-v2: attn_mask_type {kind} needs as many keys as queries, there are "
            f"{len(query)} queries and {len(key)} keys"
        )
    return attend(module, *arguments, version=2, **keywords)
