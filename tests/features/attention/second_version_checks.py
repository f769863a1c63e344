"""What is checked of the second version of the operator, and of ALiBi, on a device."""

from typing import Any

import pytest
import torch

from features.attention.attention_device_checks import DONE, make_inputs
from features.attention.attention_scenarios import make_attention, make_packed
from features.parts import Named, make_config, make_gpt, make_random, run_gpt_step


def count_calls(run: Any) -> dict[str, list[dict[str, Any]]]:
    """The keyword arguments of each call of both versions while `run` runs."""
    import torch_npu

    names = ("npu_fusion_attention", "npu_fusion_attention_v2")
    calls: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    kept = {name: getattr(torch_npu, name) for name in names}

    def record(name: str) -> Any:
        def recorded(*arguments: Any, **keywords: Any) -> Any:
            calls[name].append(keywords)
            return kept[name](*arguments, **keywords)

        return recorded

    try:
        for name in names:
            setattr(torch_npu, name, record(name))
        run()
    finally:
        for name in names:
            setattr(torch_npu, name, kept[name])
    return calls


def check_second_alone() -> Named:
    """The option needs no other, and every layer calls the second version."""
    model = make_gpt(make_config(torch.float32, use_fusion_attn_v2=True))
    calls = count_calls(lambda: run_gpt_step(model, with_mask=False))
    assert [len(found) for found in calls.values()] == [0, 2]
    return DONE


def check_second_refusals() -> Named:
    """A bottom-right mask over fewer keys than queries, which the second version lacks."""
    from megatron.core.transformer.enums import AttnMaskType

    if "causal_bottom_right" in AttnMaskType.__members__:
        module = make_attention(torch.float32, use_fusion_attn_v2=True, kind="causal_bottom_right")
        with pytest.raises(ValueError, match="needs as many keys as queries"):
            module(*make_inputs(6, 4), None)
    return DONE


def check_alibi_calls() -> Named:
    """One bias for all layers, made once; the compressed form where the operator takes it."""
    for way, shape in ((2, [4]), (0, [1, 4, 13, 13])):
        config = make_config(torch.float32, alibi_fusion_attn_type=way)
        model = make_gpt(config, position_embedding_type="alibi")
        calls = count_calls(lambda model=model: run_gpt_step(model, with_mask=False))
        assert not calls["npu_fusion_attention"]
        first, second = calls["npu_fusion_attention_v2"]
        assert first["pse"] is second["pse"]
        assert list(first["pse"].shape) == shape
        assert first["pse_type"] == way
    module = make_attention(torch.bfloat16, alibi_fusion_attn_type=0)
    q, k, v = (make_random(1100, 1, 4, 8, dtype=torch.bfloat16) for _ in range(3))
    calls = count_calls(lambda: module(q, k, v, None))
    assert list(calls["npu_fusion_attention_v2"][0]["pse"].shape) == [1, 4, 1024, 1100]
    return DONE


def check_alibi_refusals() -> Named:
    """What ALiBi cannot be, with a message that says so."""
    from megatron.core.transformer.dot_product_attention import DotProductAttention
    from megatron.core.transformer.enums import AttnMaskType

    inside = make_attention(torch.float32, alibi_fusion_attn_type=2)
    with pytest.raises(ValueError, match="as many queries as keys, there are 1 and 6; set 0"):
        inside(*make_inputs(1, 6), None)
    tensor = make_attention(torch.float32, alibi_fusion_attn_type=0)
    packed, _, places = make_packed()
    tokens = (make_random(sum(places), 4, 8, dtype=torch.float32) for _ in range(3))
    with pytest.raises(ValueError, match="alibi_fusion_attn_type=0 takes no packed sequences"):
        tensor(*tokens, None, packed_seq_params=packed)
    config = make_config(torch.float32, alibi_fusion_attn_type=2)
    with pytest.raises(ValueError, match="is for self attention, not for cross"):
        DotProductAttention(config, 1, AttnMaskType.no_mask, "cross")
    with pytest.raises(ValueError, match="positions would count twice"):
        make_gpt(config, position_embedding_type="rope")
    with pytest.raises(ValueError, match="without it no position reaches the model"):
        make_gpt(make_config(torch.float32), position_embedding_type="alibi")
    return DONE
