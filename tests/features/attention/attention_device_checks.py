"""What is checked of flash attention on a device, beside comparison with upstream.

Each check asserts by itself, in the scenario's process, and returns what the test compares.
"""

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

from features.attention.attention_scenarios import make_attention, make_mask
from features.parts import Named, find_grad, make_config, make_gpt, make_random, run_gpt_step

DONE: Named = {"done": torch.ones(1)}


def make_inputs(
    queries: int = 6, keys: int = 6, *, groups: int = 4, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Query, key and value of two sequences."""
    return (
        make_random(queries, 2, 4, 8, dtype=dtype),
        make_random(keys, 2, groups, 8, dtype=dtype),
        make_random(keys, 2, groups, 8, dtype=dtype),
    )


def record_operator() -> tuple[list[dict[str, Any]], Callable[[], None]]:
    """Record the arguments of every operator call from now on; the second value ends it."""
    import torch_npu

    operator = torch_npu.npu_fusion_attention
    calls: list[dict[str, Any]] = []

    def recorded(query: Any, key: Any, value: Any, heads: int, layout: str, **rest: Any) -> Any:
        calls.append({"query": query, "key": key, "heads": heads, "layout": layout, **rest})
        return operator(query, key, value, heads, layout, **rest)

    torch_npu.npu_fusion_attention = recorded
    return calls, lambda: setattr(torch_npu, "npu_fusion_attention", operator)


def check_refusals() -> Named:
    """Masks that cannot be expressed, or are missing, are errors that say so."""
    from megatron.core.packed_seq_params import PackedSeqParams

    table = torch.tensor([0, 2, 6], device="cuda", dtype=torch.int32)
    packed = PackedSeqParams(qkv_format="thd", cu_seqlens_q=table, cu_seqlens_kv=table)
    cases: list[tuple[str, dict[str, Any], tuple[Any, ...], dict[str, Any]]] = [
        ("arbitrary needs an attention_mask", {"kind": "arbitrary"}, (None,), {}),
        ("padding_causal needs an attention_mask", {"kind": "padding_causal"}, (None,), {}),
        ("must be bool", {"kind": "padding"}, (torch.zeros(6, 6, device="cuda"),), {}),
        (
            r"\[2, 1, 6, 7\] does not broadcast",
            {"kind": "padding"},
            (make_mask("full padding", 2, 6, 7),),
            {},
        ),
        ("attention_bias", {}, (None,), {"attention_bias": torch.zeros(1)}),
    ]
    for message, settings, arguments, keywords in cases:
        module = make_attention(torch.float32, flash=True, **settings)
        with pytest.raises(ValueError, match=message):
            module(*make_inputs(), *arguments, **keywords)
    with pytest.raises(ValueError, match="causal mask is for self attention"):
        make_attention(torch.float32, flash=True)(*make_inputs(4, 6), None)

    tokens = tuple(x.detach()[:, 0] for x in make_inputs())
    arbitrary = make_attention(torch.float32, flash=True, kind="arbitrary")
    with pytest.raises(ValueError, match="arbitrary cannot be computed on packed"):
        arbitrary(*tokens, None, packed_seq_params=packed)
    causal = make_attention(torch.float32, flash=True)
    with pytest.raises(ValueError, match="beyond the 5 queries"):
        causal(*(x[:5] for x in tokens), None, packed_seq_params=packed)
    other = PackedSeqParams(qkv_format="bshd", cu_seqlens_q=table, cu_seqlens_kv=table)
    with pytest.raises(ValueError, match="must be in thd format"):
        causal(*tokens, None, packed_seq_params=other)
    short = torch.tensor([0, 1, 6], device="cuda", dtype=torch.int32)
    bad = PackedSeqParams("thd", table, table, short, short)
    with pytest.raises(ValueError, match="longer than its place"):
        causal(*tokens, None, packed_seq_params=bad)
    return DONE


def check_selection() -> Named:
    """attention_backend selects the operator, auto leaves the local spec to upstream."""
    from megatron.core.transformer.enums import AttnBackend

    for settings, expected in (
        ({}, 0),
        ({"attention_backend": AttnBackend.local}, 0),
        ({"attention_backend": AttnBackend.unfused}, 0),
        ({"attention_backend": AttnBackend.flash}, 1),
        ({"attention_backend": AttnBackend.fused}, 1),
        ({"use_flash_attn": True}, 1),
        ({"use_flash_attn": True, "attention_backend": AttnBackend.flash}, 1),
    ):
        calls, stop = record_operator()
        make_attention(torch.float32, **settings)(*make_inputs(), None)
        stop()
        assert len(calls) == expected, (settings, len(calls))
    changed = make_config(torch.float32)
    changed.use_flash_attn = True  # as frameworks do, before the model is built
    calls, stop = record_operator()
    run_gpt_step(make_gpt(changed), with_mask=False)
    stop()
    assert len(calls) == 2
    return DONE


def check_sharing() -> Named:
    """All layers read one compressed mask, and keys are not repeated for grouped queries."""
    calls, stop = record_operator()
    with torch.inference_mode():  # the kept mask must serve training afterwards
        make_attention(torch.float32, flash=True)(*make_inputs(), None)
    run_gpt_step(make_gpt(make_config(torch.float32, num_query_groups=2, use_flash_attn=True)),
                 with_mask=False)  # fmt: skip
    stop()
    masks = {call["atten_mask"].data_ptr() for call in calls}
    assert len(calls) == 3
    assert len(masks) == 1
    assert calls[0]["atten_mask"].shape == (2048, 2048)
    assert [call["query"].shape[-1] // call["key"].shape[-1] for call in calls] == [1, 2, 2]
    module = make_attention(torch.float32, flash=True)
    assert pickle.loads(pickle.dumps(module.attend)) is module.attend
    assert not module.state_dict()
    return DONE


def run_sparse_mode(*, mode: int) -> Named:
    """--sparse-mode beside a dense mask that says the same."""
    q, k, v = make_inputs(13, 13)
    band: dict[str, Any] = {"pre_tockens": 4, "next_tockens": 1} if mode == 4 else {}
    module = make_attention(torch.float32, flash=True, sparse_mode=mode, **band)
    distance = torch.arange(13)[None, :] - torch.arange(13)[:, None]
    dropped = distance > 0 if mode == 2 else (distance < -4) | (distance > 1)
    dense = make_attention(torch.float32, kind="arbitrary")
    # The mask tensor is not looked at: mode 2 says causal, mode 4 the band.
    found = module(q, k, v, make_mask("documents", 2, 13, 13))
    want = dense(q, k, v, dropped.cuda().expand(2, 1, 13, 13))
    return {"found": found, "want": want}


def run_bottom_right() -> Named:
    """causal_bottom_right, which upstream's local attention does not know."""
    q, k, v = make_inputs(5, 9)
    found = make_attention(torch.float32, flash=True, kind="causal_bottom_right")(q, k, v, None)
    dropped = (torch.arange(9)[None, :] > torch.arange(5)[:, None] + 4).cuda().expand(2, 1, 5, 9)
    want = make_attention(torch.float32, kind="arbitrary")(q, k, v, dropped)
    return {"found": found, "want": want}


def check_empty_rows() -> Named:
    """A row with nothing to attend to is 0, and disturbs no other; upstream has a mean there."""
    mask = make_mask("triangle", 2, 6, 6)
    assert mask is not None
    mask = mask.clone()
    mask[0, :, 2] = True
    results = []
    for flash in (False, True):
        torch.manual_seed(3)
        q, k, v = make_inputs()
        module = make_attention(torch.float32, flash=flash, kind="padding")
        out = module(q, k, v, mask)
        weight = torch.ones(6, 2, 1, device="cuda")
        weight[2, 0] = 0  # a loss mask
        (out * weight).square().sum().backward()
        results.append((out, [find_grad(x) for x in (q, k, v)]))
    (upstream, wants), (ours, grads) = results
    assert not ours[2, 0].any()
    kept = torch.ones(6, 2, dtype=torch.bool, device="cuda")
    kept[2, 0] = False
    torch.testing.assert_close(ours[kept], upstream[kept])
    torch.testing.assert_close(grads, wants)
    return DONE


def check_dropout() -> Named:
    """One keep mask in forward and backward, equal to dense attention with that mask.

    With the unit matrix as values the output is the dropped probabilities themselves.
    """
    p = 0.3
    module = make_attention(torch.float32, flash=True, attention_dropout=p, num_query_groups=4)
    unit = torch.eye(8, device="cuda")[:, None, None].expand(8, 2, 4, 8)
    q, k, v = make_inputs(8, 8)
    tracker = _tracker_states()
    dropped = module(q, k, unit, None).view(8, 2, 4, 8).permute(1, 2, 0, 3).detach()
    _tracker_states(tracker)
    out = module(q, k, v, None)
    grad = torch.randn_like(out)
    out.backward(grad)
    found = [out, *(find_grad(x) for x in (q, k, v))]
    for x in (q, k, v):
        x.grad = None
    scores = torch.einsum("sbnd,tbnd->bnst", q, k) * 8**-0.5
    scores = scores.masked_fill(torch.ones(8, 8, device="cuda").triu(1).bool(), -torch.inf)
    keep = dropped != 0
    assert 0.5 < keep.float().sum() / (4 * 8 * 9) < 0.9  # of 4 x 2 triangles with 36 scores
    want = torch.einsum("bnst,tbnd->sbnd", scores.softmax(-1) * keep / (1 - p), v).reshape(8, 2, 32)
    want.backward(grad)
    torch.testing.assert_close(found, [want, *(find_grad(x) for x in (q, k, v))])
    module.eval()
    assert torch.equal(module(q, k, v, None), module(q, k, v, None))
    return DONE


def _tracker_states(states: Any = None) -> Any:
    from megatron.core.tensor_parallel import get_cuda_rng_tracker

    if states is not None:
        get_cuda_rng_tracker().set_states(states)
    return {name: state.clone() for name, state in get_cuda_rng_tracker().get_states().items()}


def run_recomputed(*, recompute: bool) -> Named:
    """A GPT with attention dropout, with and without recomputing attention."""
    settings: dict[str, Any] = {"recompute_granularity": "selective"} if recompute else {}
    config = make_config(torch.float32, attention_dropout=0.2, use_flash_attn=True, **settings)
    return run_gpt_step(make_gpt(config), with_mask=False)


def run_dropout_on_rank(*, sequence_parallel: bool) -> Named:
    """The first keep mask of this tensor-parallel rank, where all ranks get the same heads."""
    torch.manual_seed(7)
    module = make_attention(
        torch.float32, flash=True, attention_dropout=0.3, sequence_parallel=sequence_parallel
    )
    q = torch.zeros(8, 2, 2, 8, device="cuda")
    unit = torch.eye(8, device="cuda")[:, None, None].expand(8, 2, 2, 8)
    return {"kept": module(q, q, unit, None) != 0}
