"""Scenarios with DotProductAttention in them: by itself, in a GPT, packed, with dropout."""

from typing import Any

import torch

from features.parts import Named, make_config, make_gpt, make_random, run_backward, run_gpt_step

# Sequences of the packed scenarios, with the places that they take.
LENGTHS, PLACES = (5, 1, 8), (7, 3, 8)


def make_attention(dtype: torch.dtype, *, kind: str = "causal", flash: bool = False,
                   layer: int = 1, **changes: Any) -> Any:  # fmt: skip
    """A DotProductAttention with four heads of width 8."""
    from megatron.core.transformer.dot_product_attention import DotProductAttention
    from megatron.core.transformer.enums import AttnMaskType

    softmax_scale = changes.pop("scale", None)
    if flash:
        changes["use_flash_attn"] = True
    config = make_config(dtype, **changes)
    module = DotProductAttention(
        config, layer, AttnMaskType[kind], "self", softmax_scale=softmax_scale
    )
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    return module.cuda()


def make_mask(name: str, batch: int, queries: int, keys: int) -> torch.Tensor | None:
    """Mask tensors as Megatron's data sets make them; true means masked."""
    if name == "none":
        return None
    ones = torch.ones(queries, keys, dtype=torch.bool, device="cuda")
    if name == "triangle":
        return ones.triu(1).expand(batch, 1, queries, keys)
    if name == "documents":  # reset_attention_mask: a document ends in the middle of entry 0
        mask = ones.triu(1).repeat(batch, 1, 1, 1)
        mask[0, 0, keys // 2 :, : keys // 2] = True
        return mask
    if name == "row padding":  # [b, 1, 1, t]: entry 0 has three tokens less
        mask = torch.zeros(batch, 1, 1, keys, dtype=torch.bool, device="cuda")
        mask[0, :, :, -3:] = True
        return mask
    if name == "full padding":
        return make_mask("row padding", batch, queries, keys).expand(batch, 1, queries, keys)  # type: ignore[union-attr]
    assert name == "shared", name
    mask = torch.rand(1, 1, queries, keys, device="cuda") < 0.4
    mask[..., 0] = False
    return mask


def run_core(
    dtype: torch.dtype,
    *,
    mask: str = "none",
    queries: int = 13,
    keys: int = 13,
    groups: int = 4,
    width: int = 8,
    **changes: Any,
) -> Named:
    """The module alone: output and gradients of query, key, value and parameters."""
    module = make_attention(dtype, num_query_groups=groups, **changes)
    batch = 2
    q = make_random(queries, batch, 4, width, dtype=dtype)
    k, v = (make_random(keys, batch, groups, width, dtype=dtype) for _ in range(2))
    out = module(q, k, v, make_mask(mask, batch, queries, keys))
    return run_backward(module, out, q=q, k=k, v=v)


def run_long(dtype: torch.dtype, **changes: Any) -> Named:
    """More tokens than the compressed mask has rows."""
    module = make_attention(dtype, hidden_size=8, num_attention_heads=1, **changes)
    q, k, v = (make_random(2100, 1, 1, 8, dtype=dtype) for _ in range(3))
    return run_backward(module, module(q, k, v, None), q=q, k=k, v=v)


def run_packed(
    dtype: torch.dtype, *, padded: bool, tail: int = 0, keys_differ: bool = False, **changes: Any
) -> Named:
    """Three sequences in one tensor; without `flash`, each by itself through upstream's module.

    Args:
        dtype: of everything.
        padded: put padding behind the sequences.
        tail: tokens behind the last sequence.
        keys_differ: cross attention, with other lengths of the keys.
        changes: for `make_attention`.
    """
    flash = changes.pop("flash", False)
    module = make_attention(dtype, num_query_groups=2, flash=flash, **changes)
    places = PLACES if padded else LENGTHS
    key_lengths = tuple(n + 2 for n in LENGTHS) if keys_differ else LENGTHS
    key_places = tuple(n + 2 for n in places) if keys_differ else places
    q = make_random(sum(places) + tail, 4, 8, dtype=dtype)
    k, v = (make_random(sum(key_places) + tail, 2, 8, dtype=dtype) for _ in range(2))
    if flash:
        packed = _pack(places if padded else None, key_lengths, key_places if padded else None)
        out = module(q, k, v, None, packed_seq_params=packed)
        assert module(q, k, v, None, packed_seq_params=packed).equal(out)  # the kept table
    else:
        out = torch.zeros(q.shape[0], 32, dtype=dtype, device="cuda")
        start = key_start = 0
        for n, place, m, key_place in zip(LENGTHS, places, key_lengths, key_places, strict=True):
            part = module(
                q[start : start + n, None],
                k[key_start : key_start + m, None],
                v[key_start : key_start + m, None],
                None,
            )
            out = torch.index_put(out, (torch.arange(start, start + n, device="cuda"),), part[:, 0])
            start, key_start = start + place, key_start + key_place
    return run_backward(module, out, q=q, k=k, v=v)


def make_packed() -> tuple[Any, tuple[int, ...], tuple[int, ...]]:
    """PackedSeqParams of self attention with padding, its lengths and places."""
    return _pack(PLACES, LENGTHS, PLACES), LENGTHS, PLACES


def _pack(
    places: tuple[int, ...] | None, key_lengths: tuple[int, ...], key_places: tuple[int, ...] | None
) -> Any:
    from megatron.core.packed_seq_params import PackedSeqParams

    def table(lengths: tuple[int, ...] | None) -> torch.Tensor | None:
        if lengths is None:
            return None
        return torch.tensor([0, *lengths]).cumsum(0).to(device="cuda", dtype=torch.int32)

    return PackedSeqParams(
        qkv_format="thd",
        cu_seqlens_q=table(LENGTHS),
        cu_seqlens_kv=table(key_lengths),
        cu_seqlens_q_padded=table(places),
        cu_seqlens_kv_padded=table(key_places),
        max_seqlen_q=max(LENGTHS),
        max_seqlen_kv=max(key_lengths),
    )


def run_gpt(dtype: torch.dtype, *, with_mask: bool = True, **changes: Any) -> Named:
    """Two layers of GPT with grouped queries."""
    if changes.pop("flash", False):
        changes["use_flash_attn"] = True
    model = make_gpt(make_config(dtype, num_query_groups=2, **changes))
    return run_gpt_step(model, with_mask=with_mask)
