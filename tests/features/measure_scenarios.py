"""What a feature is for, measured: peak device memory and operator launches of one pass.

Peak memory is what the caching allocator handed out above what was there before, over a forward and
a backward pass; workspace that a kernel of real hardware takes is not in it. A launch is a
dispatched operator that computes something: views and bare allocations are none.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from features.attention.alibi_scenarios import SLOPES, attend_dense
from features.attention.attention_scenarios import make_attention, make_mask
from features.fusions.rmsnorm_scenarios import make_rms_config
from features.fusions.rope_scenarios import make_angles, make_rope_config
from features.parts import Named, make_random

_ALLOCATIONS = ("aten::empty", "aten::new_empty", "aten::detach", "aten::_unsafe_view")


class CountLaunches(TorchDispatchMode):
    """Counts operators by name while it is entered, in the backward pass as well."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = function._schema.name
        is_view = any(
            out.alias_info is not None and not out.alias_info.is_write
            for out in function._schema.returns
        )
        if not is_view and not name.startswith(_ALLOCATIONS):
            self.counts[name] += 1
        return function(*args, **(kwargs or {}))


def measure(run: Callable[[], torch.Tensor]) -> Named:
    """Run forward and backward twice: for memory, and for launches.

    Args:
        run: builds nothing, returns the output.
    """
    import torch_npu

    out = run()
    grad = torch.ones_like(out)
    out.backward(grad)  # gradients exist from now on
    del out
    before = torch_npu.npu.memory_allocated()
    torch_npu.npu.reset_peak_memory_stats()
    run().backward(grad)
    peak = torch_npu.npu.max_memory_allocated() - before
    forward, backward = CountLaunches(), CountLaunches()
    with forward:
        out = run()
    with backward:
        out.backward(grad)
    return {
        "peak_bytes": torch.tensor(peak),
        "forward": torch.tensor(forward.counts.total()),
        "backward": torch.tensor(backward.counts.total()),
    }


def measure_attention(*, on: bool, tokens: int) -> Named:
    """DotProductAttention, causal, without a mask tensor: bf16, batch 1, 4 heads of width 64."""
    module = make_attention(
        torch.bfloat16, flash=on, hidden_size=256, num_attention_heads=4, num_query_groups=2
    )
    q, k, v = _make_heads(tokens)
    return measure(lambda: module(q, k, v, None))


def measure_second_version(*, on: bool, tokens: int) -> Named:
    """The same by the second version of the operator."""
    options: dict[str, Any] = {"use_fusion_attn_v2": True} if on else {}
    module = make_attention(
        torch.bfloat16, hidden_size=256, num_attention_heads=4, num_query_groups=2, **options
    )
    q, k, v = _make_heads(tokens)
    return measure(lambda: module(q, k, v, None))


def measure_alibi(*, on: bool, tokens: int) -> Named:
    """ALiBi inside the operator, and (off) its formula in plain torch: of the same sizes."""
    q, k, v = _make_heads(tokens)
    if on:
        sizes: dict[str, Any] = {
            "hidden_size": 256,
            "num_attention_heads": 4,
            "num_query_groups": 2,
        }
        module = make_attention(torch.bfloat16, alibi_fusion_attn_type=2, **sizes)
        return measure(lambda: module(q, k, v, None))
    mask = make_mask("triangle", 1, tokens, tokens)
    slopes = torch.tensor(SLOPES[4], device="cuda")
    return measure(lambda: attend_dense(q, k, v, mask, slopes=slopes))


def _make_heads(tokens: int) -> list[torch.Tensor]:
    return [make_random(tokens, 1, heads, 64, dtype=torch.bfloat16) for heads in (4, 2, 2)]


def measure_rmsnorm(*, on: bool, tokens: int) -> Named:
    """RMSNorm of the local layer spec: bf16, width 1024."""
    from megatron.core.transformer.torch_norm import WrappedTorchNorm

    config = make_rms_config(torch.bfloat16, **({"fused": True} if on else {}))
    norm = WrappedTorchNorm(config, 1024).cuda().bfloat16()
    x = make_random(tokens, 1, 1024, dtype=torch.bfloat16)
    return measure(lambda: norm(x))


def measure_rope(*, on: bool, tokens: int) -> Named:
    """Rotary embedding of queries: bf16, batch 1, 4 heads of width 64."""
    from megatron.core.models.common.embeddings.rope_utils import apply_rotary_pos_emb

    config = make_rope_config(torch.bfloat16, **({"fused": True} if on else {}))
    t = make_random(tokens, 1, 4, 64, dtype=torch.bfloat16)
    angles = make_angles(tokens, 64)
    return measure(lambda: apply_rotary_pos_emb(t, angles, config))


def measure_softmax(*, on: bool, tokens: int) -> Named:
    """FusedScaleMaskSoftmax with a causal mask: bf16, batch 1, 4 heads."""
    from megatron.core.fusions.fused_softmax import FusedScaleMaskSoftmax
    from megatron.core.transformer.enums import AttnMaskType
    from megatron.core.transformer.utils import attention_mask_func

    module = FusedScaleMaskSoftmax(
        False, True, AttnMaskType.causal, on, attention_mask_func, True, None
    )
    scores = make_random(1, 4, tokens, tokens, dtype=torch.bfloat16)
    return measure(lambda: module(scores, None))


def measure_permute(*, on: bool, tokens: int) -> Named:
    """Permute and unpermute: bf16, width 256, 8 experts, 2 for each token."""
    from megatron.core.transformer.moe.moe_utils import permute, unpermute

    routing_map = torch.zeros(tokens, 8, dtype=torch.bool, device="cuda")
    chosen = torch.rand(tokens, 8, device="cuda").topk(2, dim=1).indices
    routing_map.scatter_(1, chosen, True)
    x = make_random(tokens, 256, dtype=torch.bfloat16)

    def run() -> torch.Tensor:
        slots, _, order = permute(x, routing_map, num_out_tokens=2 * tokens, fused=on)[:3]
        out: torch.Tensor = unpermute(slots, order, x.shape, fused=on)
        return out

    return measure(run)
